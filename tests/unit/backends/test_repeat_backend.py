from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.batch import BatchItem, processor_for
from stoker.backends.api.candidate import Candidate
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed, InvalidRequest, ServingError, Unsupported
from stoker.backends.api.model import ModelFacts, ModelSignature, TensorSpec
from stoker.backends.api.streaming import StreamingInstance
from stoker.backends.api.tensor import DataType
from stoker.backends.repeat.backend import RepeatBackend, RepeatInstance
from stoker.backends.testing.samples import version_files

INT32, UINT32 = DataType.INT32, DataType.UINT32
INPUTS = (
    TensorSpec("IN", INT32, (-1,)),
    TensorSpec("DELAY", UINT32, (-1,), optional=True),
    TensorSpec("WAIT", UINT32, (1,), optional=True),
)
OUTPUTS = (TensorSpec("OUT", INT32, (1,)), TensorSpec("IDX", UINT32, (1,)))
SERVED = ModelSignature(INPUTS, OUTPUTS, 0, is_decoupled=True)


class Sink:
    """Accepts at most `most` responses."""

    def __init__(self, most: int = 100) -> None:
        self.taken: list[dict[str, list[int]]] = []
        self.most = most

    def put(self, outputs):
        self.taken.append({name: array.tolist() for name, array in outputs.items()})
        return len(self.taken) < self.most


def inputs(values: list[int], delays: list[int] | None = None, wait: int | None = None) -> dict[str, np.ndarray]:
    given = {"IN": np.array(values, np.int32)}
    if delays is not None:
        given["DELAY"] = np.array(delays, np.uint32)
    if wait is not None:
        given["WAIT"] = np.array([wait], np.uint32)
    return given


def run(instance: StreamingInstance, given, sink: Sink | None, names=("OUT", "IDX"), served: ModelSignature = SERVED):
    [outcome] = processor_for(instance, served, SystemClock()).process([BatchItem(given, 1, names, {}, sink)]).outcomes
    return outcome


def test_each_element_produces_a_response_after_its_delay():
    slept: list[float] = []
    sink = Sink()
    assert run(RepeatInstance(sleep=slept.append), inputs([4, 5], [10, 0], wait=30), sink) == {}
    assert sink.taken == [{"OUT": [4], "IDX": [0]}, {"OUT": [5], "IDX": [1]}]
    assert slept == [0.01, 0.02]


def test_request_without_elements_gets_no_response():
    sink = Sink()
    assert run(RepeatInstance(), inputs([]), sink) == {}
    assert sink.taken == []


def test_only_requested_outputs_are_returned():
    sink = Sink()
    run(RepeatInstance(), inputs([4]), sink, names=("IDX",))
    assert sink.taken == [{"IDX": [0]}]


def test_disconnected_client_ends_the_work():
    slept: list[float] = []
    sink = Sink(most=2)
    run(RepeatInstance(sleep=slept.append), inputs([1, 2, 3, 4], [1, 1, 1, 1]), sink)
    assert len(sink.taken) == len(slept) == 2


def test_responses_before_a_failure_are_delivered():
    sink = Sink()
    outcome = run(RepeatInstance(fail_at=1), inputs([1, 2, 3]), sink)
    assert isinstance(outcome, BackendFailed)
    assert "response 1" in outcome.message
    assert [taken["IDX"] for taken in sink.taken] == [[0]]


@pytest.mark.parametrize(("given", "text"), [(inputs([1, 2], [1]), "1 elements and 'IN' 2"), (inputs([1], [60_001]), "at most 60000")])
def test_invalid_inputs_are_refused(given, text):
    outcome = run(RepeatInstance(), given, Sink())
    assert isinstance(outcome, InvalidRequest)
    assert text in outcome.message


def test_request_for_one_response_is_refused_with_tritons_text():
    outcome = run(RepeatInstance(), inputs([1]), None)
    assert isinstance(outcome, Unsupported)
    assert "doesn't support models with decoupled transaction policy" in outcome.message


def test_model_that_is_not_decoupled_must_respond_exactly_once():
    plain = ModelSignature(INPUTS, OUTPUTS, 0)
    assert run(RepeatInstance(), inputs([7]), None, served=plain)["OUT"].tolist() == [7]
    for values in ([], [1, 2]):
        outcome = run(RepeatInstance(), inputs(values), None, served=plain)
        assert isinstance(outcome, ServingError)
        assert "expected a single response" in outcome.message


def test_with_a_batch_dimension_responses_have_one_too():
    batched = ModelSignature(INPUTS, OUTPUTS, 1, is_decoupled=True)
    sink = Sink()
    assert run(RepeatInstance(), {"IN": np.array([[4, 5]], np.int32)}, sink, served=batched) == {}
    assert sink.taken == [{"OUT": [[4]], "IDX": [[0]]}, {"OUT": [[5]], "IDX": [[1]]}]


def test_streams_parameter_sets_the_number_of_concurrent_requests(tmp_path: Path):
    files = version_files(tmp_path, {"model.repeat": b""})
    request = LoadRequest(
        model_name="r", version=1, files=files, model_filename="model.repeat", signature=SERVED, parameters={"streams": "3"}
    )
    assert RepeatBackend().load(request).pipeline_depth == 3


@pytest.mark.parametrize(
    ("signature", "parameters", "field"),
    [
        (SERVED, {"streams": "0"}, 'parameters["streams"]'),
        (SERVED, {"fail_at": "x"}, 'parameters["fail_at"]'),
        (ModelSignature(INPUTS, OUTPUTS, 2), {}, "max_batch_size"),
        (ModelSignature(INPUTS[1:], OUTPUTS, 0), {}, "input"),
        (ModelSignature((*INPUTS, TensorSpec("MORE", INT32, (1,))), OUTPUTS, 0), {}, "input[3].name"),
        (ModelSignature(INPUTS, (TensorSpec("OUT", UINT32, (1,)),), 0), {}, "output[0].data_type"),
        (ModelSignature(INPUTS, (TensorSpec("OUT", INT32, (7,)),), 0), {}, "output[0].dims"),
        (ModelSignature((INPUTS[0], TensorSpec("WAIT", UINT32, (-1,))), OUTPUTS, 0), {}, "input[1].dims"),
        (ModelSignature((INPUTS[0], TensorSpec("DELAY", UINT32, (3, 4))), OUTPUTS, 0), {}, "input[1].dims"),
        (ModelSignature((TensorSpec("IN", INT32, (2, 2)),), OUTPUTS, 0), {}, "input"),
    ],
)
def test_unworkable_configuration_is_refused(signature, parameters, field):
    candidate = Candidate(facts=ModelFacts(None, None), signature=signature, parameters=parameters, graph_level=None)
    assert field in [violation.field for violation in RepeatBackend().check(candidate)]
