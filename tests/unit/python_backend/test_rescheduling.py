"""Models of Triton's form that ask for a further execution of a request."""

import json
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.backend import Instance
from stoker.backends.api.errors import BackendFailed, ModelLoadError
from stoker.backends.api.rescheduling import Rescheduled
from tests.fakes.python_models import Item, Mark, Sink, load, processor, run, signature, text_of

TENSORS = ({"IN": ("INT32", [1])}, {"OUT": ("INT32", [1])}, 4)
SINGLE = signature(*TENSORS, is_iterative=True)
STREAM = signature(*TENSORS, is_iterative=True, is_decoupled=True)
STATEFUL = signature(TENSORS[0], {"OUT": ("INT32", [1]), "is": ("INT32", [1])}, 4, is_iterative=True)
WITH_STATE = json.dumps({"name": "m", "sequence_batching": {"state": [{"input_name": "was", "output_name": "is"}]}})

HEAD = """
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

def tensor(name, value):
    return pb_utils.Tensor(name, np.array([[value]], np.int32))

def out(value, name="OUT"):
    return pb_utils.InferenceResponse([tensor(name, value)])

def value_of(request):
    return int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0])
"""

#: Executes a request as often as its input says; the response is the count of executions. Returns None for the list if it is empty.
COUNTING = (
    HEAD
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.counts = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            sequence = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.counts[sequence] = 0
            self.counts[sequence] += 1
            if self.counts[sequence] < value_of(request):
                request.set_release_flags(AGAIN)
                responses.append(None)
            else:
                responses.append(out(self.counts.pop(sequence)))
        return responses if any(responses) else None
"""
)


def model(*lines: str) -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"{HEAD}\nclass TritonPythonModel:\n    def execute(self, requests):\n        request, = requests\n{body}\n"


def item(value: int = 1, **more: object) -> Item:
    wanted = more.pop("output_names", ("OUT",))
    return Item({"IN": np.array([[value]], np.int32)}, wanted, **more)  # type: ignore[arg-type]


def one(instance: Instance, served: object = SINGLE, **more: object) -> object:
    return run(instance, served, [item(**more)])[0]  # type: ignore[arg-type]


def test_request_is_executed_until_the_model_responds(tmp_path: Path):
    instance = load(tmp_path, COUNTING, SINGLE)
    for step in (1, 2, 3):
        outcomes = run(
            instance, SINGLE, [item(3, sequence=Mark(1, is_start=step == 1)), item(step, sequence=Mark(step + 1, is_start=True))]
        )
        assert [type(outcome) for outcome in outcomes] == [Rescheduled if step < 3 else dict, dict if step == 1 else Rescheduled]
    assert outcomes[0]["OUT"].tolist() == [[3]]  # type: ignore[index]


def test_batch_of_rescheduled_requests_is_one_execution(tmp_path: Path):
    result = processor(load(tmp_path, COUNTING, SINGLE), SINGLE).process([item(2, sequence=Mark(each, is_start=True)) for each in (1, 2)])
    assert (result.outcomes, result.executions) == ([Rescheduled(), Rescheduled()], [2])


def test_rescheduled_request_of_an_async_model(tmp_path: Path):
    source = COUNTING.replace("def execute", "async def execute")
    instance = load(tmp_path, source, SINGLE)
    assert isinstance(one(instance, value=2, sequence=Mark(1, is_start=True)), Rescheduled)
    assert one(instance, value=2, sequence=Mark(1))["OUT"].tolist() == [[2]]  # type: ignore[index]
    instance.close()


def test_response_for_a_rescheduled_request_is_an_error_of_the_request(tmp_path: Path):
    source = model("request.set_release_flags(AGAIN)", "return [out(1)]")
    outcome = one(load(tmp_path, source, SINGLE))
    assert isinstance(outcome, BackendFailed)
    assert "Expected a None object in the execute function return list for rescheduled request" in outcome.message
    assert outcome.message.endswith("may be returned: the model has none")


def test_response_by_a_sender_and_a_reschedule_contradict_each_other(tmp_path: Path):
    source = model("request.get_response_sender().send(out(1))", "request.set_release_flags(AGAIN)", "return None")
    assert "sent a response to a request that it reschedules" in text_of(one(load(tmp_path, source, SINGLE)))  # type: ignore[arg-type]


def test_error_ends_a_rescheduled_request(tmp_path: Path):
    source = model("request.set_release_flags(AGAIN)", "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('enough'))]")
    assert text_of(one(load(tmp_path, source, SINGLE))) == "enough"  # type: ignore[arg-type]


def test_last_flags_count(tmp_path: Path):
    source = model(
        "request.set_release_flags(AGAIN)", "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)", "return [out(5)]"
    )
    assert one(load(tmp_path, source, SINGLE))["OUT"].tolist() == [[5]]  # type: ignore[index]


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_model_without_iterative_sequences_cannot_reschedule(tmp_path: Path, is_decoupled: bool):
    served = signature(*TENSORS, is_decoupled=is_decoupled)
    source = model("request.set_release_flags(AGAIN)", "return [None]")
    outcome = one(load(tmp_path, source, served), served, responses=Sink())
    assert "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in text_of(outcome)  # type: ignore[arg-type]
    assert "iterative_sequence: true" in text_of(outcome)  # type: ignore[arg-type]


def test_request_to_another_model_cannot_be_rescheduled(tmp_path: Path):
    source = model("pb_utils.InferenceRequest(model_name='other').set_release_flags(AGAIN)", "return [out(1)]")
    assert "RELEASE_RESCHEDULE" in text_of(one(load(tmp_path, source, SINGLE)))  # type: ignore[arg-type]


@pytest.mark.parametrize("flags", [0, 3])
def test_unknown_release_flags_are_named(tmp_path: Path, flags: int):
    source = model(f"request.set_release_flags({flags})", "return [out(1)]")
    assert f"not {flags}" in text_of(one(load(tmp_path, source, SINGLE)))  # type: ignore[arg-type]


def test_states_may_be_returned_for_a_rescheduled_request(tmp_path: Path):
    source = model("request.set_release_flags(AGAIN)", "return [out(7, 'is')]")
    instance = load(tmp_path, source, STATEFUL, config_json=WITH_STATE)
    outcome = one(instance, STATEFUL, output_names=("OUT", "is"))
    assert isinstance(outcome, Rescheduled)
    assert outcome["is"].tolist() == [[7]]


def test_last_response_needs_no_states_but_all_other_outputs(tmp_path: Path):
    instance = load(tmp_path / "a", model("return [out(7)]"), STATEFUL, config_json=WITH_STATE)
    assert list(one(instance, STATEFUL, output_names=("OUT", "is"))) == ["OUT"]  # type: ignore[call-overload]
    instance = load(tmp_path / "b", model("return [out(7, 'is')]"), STATEFUL, config_json=WITH_STATE)
    assert "did not return output(s) OUT" in text_of(one(instance, STATEFUL, output_names=("OUT", "is")))  # type: ignore[arg-type]


def test_other_outputs_beside_the_states_of_a_rescheduled_request_are_an_error(tmp_path: Path):
    source = model("request.set_release_flags(AGAIN)", "return [pb_utils.InferenceResponse([tensor('is', 1), tensor('OUT', 1)])]")
    outcome = one(load(tmp_path, source, STATEFUL, config_json=WITH_STATE), STATEFUL)
    assert text_of(outcome).endswith("only an InferenceResponse of states may be returned: is")  # type: ignore[arg-type]


GENERATING = (
    HEAD
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.left = {}
        self.batches = []

    def execute(self, requests):
        self.batches.append(len(requests))
        for request in requests:
            sequence = request.correlation_id()
            left = self.left.get(sequence, value_of(request)) - 1
            request.get_response_sender().send(out(left), flags=0 if left else FINAL)
            if left:
                self.left[sequence] = left
                request.set_release_flags(AGAIN)
            else:
                self.left.pop(sequence, None)
"""
)


def test_decoupled_model_responds_in_each_execution(tmp_path: Path):
    instance = load(tmp_path, GENERATING, STREAM)
    assert instance.pipeline_depth == 1
    sinks = [Sink(), Sink()]

    def step() -> list[type]:
        items = [item(count, sequence=Mark(count), responses=sink) for count, sink in zip((1, 3), sinks, strict=True)]
        return [type(outcome) for outcome in run(instance, STREAM, items)]

    assert [step(), step(), step()] == [[dict, Rescheduled], [dict, Rescheduled], [dict, dict]]
    assert [[response["OUT"].item() for response in sink.taken] for sink in sinks] == [[0, 0, 0], [2, 1, 0]]
    assert instance._model.batches == [2, 2, 2]  # type: ignore[attr-defined]


def test_final_flag_ends_a_request_that_is_rescheduled_too(tmp_path: Path):
    source = model("request.get_response_sender().send(out(1), flags=FINAL)", "request.set_release_flags(AGAIN)")
    sink = Sink()
    assert type(one(load(tmp_path, source, STREAM), STREAM, responses=sink)) is dict
    assert len(sink.taken) == 1


def test_sender_of_an_earlier_execution_sends_no_more(tmp_path: Path):
    source = (
        HEAD
        + """
class TritonPythonModel:
    senders = []
    def execute(self, requests):
        request, = requests
        if self.senders:
            try:
                self.senders[0].send(out(1))
            except pb_utils.TritonModelException as error:
                request.get_response_sender().send(
                    pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
                )
            return
        self.senders.append(request.get_response_sender())
        request.set_release_flags(AGAIN)
"""
    )
    instance = load(tmp_path, source, STREAM)
    assert isinstance(one(instance, STREAM, responses=Sink()), Rescheduled)
    assert text_of(one(instance, STREAM, responses=Sink())) == (  # type: ignore[arg-type]
        "the request was rescheduled: its next execution has a response sender of its own"
    )


def test_streams_parameter_sets_the_batches_that_run_at_once(tmp_path: Path):
    assert load(tmp_path, GENERATING, STREAM, parameters={"streams": "3"}).pipeline_depth == 3


def test_typed_model_cannot_have_iterative_sequences(tmp_path: Path):
    source = "from stoker.models import *\ndef predict(x: int) -> int: ...\n"
    with pytest.raises(ModelLoadError, match="iterative_sequence needs a class TritonPythonModel"):
        load(tmp_path, source, signature({"x": ("INT64", [1])}, {"output": ("INT64", [1])}, is_iterative=True))
