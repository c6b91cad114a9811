import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.errors import Cancelled, ServingError, Unsupported
from tests.fakes.python_models import Item, Sink, load, processor, run, run_one, signature, text_of

STREAM = signature({"IN": ("INT32", [1])}, {"OUT": ("INT32", [1])}, is_decoupled=True)
SINGLE = signature({"IN": ("INT32", [1])}, {"OUT": ("INT32", [1])})

HEAD = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def out(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])
"""

SQUARE_IN_THREADS = (
    HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]
            threading.Thread(target=self.respond, args=(request.get_response_sender(), value), daemon=True).start()

    def respond(self, sender, value):
        for _ in range(value):
            sender.send(out(value))
        sender.send(flags=FINAL)
"""
)


def model(*lines: str) -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"{HEAD}\nclass TritonPythonModel:\n    def execute(self, requests):\n        request, = requests\n{body}\n"


def one(value: int = 1) -> dict[str, np.ndarray]:
    return {"IN": np.array([value], np.int32)}


def test_responses_come_from_threads_after_execute_has_returned(tmp_path: Path):
    instance = load(tmp_path, SQUARE_IN_THREADS, STREAM)
    sinks = [Sink(), Sink(), Sink()]
    outcomes = run(instance, STREAM, [Item(one(count), ("OUT",), responses=sink) for count, sink in enumerate(sinks)])
    assert outcomes == [{}, {}, {}]
    assert [[response["OUT"].tolist() for response in sink.taken] for sink in sinks] == [[], [[1]], [[2], [2]]]


def test_last_response_may_carry_the_final_flag(tmp_path: Path):
    sink = Sink()
    source = model("request.get_response_sender().send(out(5), flags=FINAL)")
    assert run_one(load(tmp_path, source, STREAM), STREAM, inputs=one(), responses=sink) == {}
    assert [response["OUT"].tolist() for response in sink.taken] == [[5]]


def test_decoupled_model_takes_several_streams_at_once(tmp_path: Path):
    assert load(tmp_path / "a", SQUARE_IN_THREADS, STREAM).pipeline_depth == 16
    assert load(tmp_path / "b", SQUARE_IN_THREADS, STREAM, parameters={"streams": "3"}).pipeline_depth == 3
    assert load(tmp_path / "c", SQUARE_IN_THREADS, SINGLE).pipeline_depth == 1


def test_next_request_begins_while_an_earlier_stream_waits(tmp_path: Path):
    source = (
        HEAD
        + """
class TritonPythonModel:
    senders = []
    def execute(self, requests):
        self.senders.append(requests[0].get_response_sender())
        if len(self.senders) == 2:
            for sender in self.senders:
                sender.send(flags=FINAL)
"""
    )
    instance = load(tmp_path, source, STREAM)
    outcomes: list[object] = []
    item = Item(one(), ("OUT",), responses=Sink())
    threads = [threading.Thread(target=lambda: outcomes.append(run(instance, STREAM, [item])[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert outcomes == [{}, {}]


def test_request_to_a_decoupled_model_without_a_stream_is_unsupported(tmp_path: Path):
    outcome = run_one(load(tmp_path, SQUARE_IN_THREADS, STREAM), STREAM, inputs=one())
    assert isinstance(outcome, Unsupported)


def test_error_response_ends_the_stream_after_those_before_it(tmp_path: Path):
    sink = Sink()
    source = model(
        "sender = request.get_response_sender()",
        "sender.send(out(1))",
        "sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('enough', pb_utils.TritonError.UNAVAILABLE)))",
        "sender.send(out(2))",
        "sender.send(flags=FINAL)",
    )
    outcome = run_one(load(tmp_path, source, STREAM), STREAM, inputs=one(), responses=sink)
    assert text_of(outcome) == "enough"
    assert len(sink.taken) == 1


def test_exception_of_execute_ends_the_stream_with_its_text(tmp_path: Path):
    sink = Sink()
    source = model("self.kept = request.get_response_sender()", "self.kept.send(out(1))", "raise ValueError('late')")
    outcome = run_one(load(tmp_path, source, STREAM), STREAM, inputs=one(), responses=sink)
    assert (text_of(outcome), len(sink.taken)) == ("ValueError: late", 1)


def test_model_that_drops_its_sender_without_the_final_flag_fails_the_request(tmp_path: Path):
    source = model("request.get_response_sender().send(out(1))")
    outcome = run_one(load(tmp_path, source, STREAM), STREAM, inputs=one(), responses=Sink())
    assert text_of(outcome) == "the model dropped the request before its response sender sent the FINAL flag"


def test_sender_reports_that_the_client_is_gone_and_drops_what_follows(tmp_path: Path):
    sink = Sink(most=2)
    source = model(
        "sender = request.get_response_sender()",
        "self.sent = 0",
        "while not sender.is_cancelled():",
        "    sender.send(out(1))",
        "    self.sent += 1",
        "sender.send(out(1))",
        "sender.send(flags=FINAL)",
        "assert request.is_cancelled()",
    )
    instance = load(tmp_path, source, STREAM)
    assert run_one(instance, STREAM, inputs=one(), responses=sink) == {}
    assert (instance._model.sent, len(sink.taken)) == (3, 2)  # type: ignore[attr-defined]


def test_cancelled_request_is_seen_before_it_responds(tmp_path: Path):
    source = model("return [None if request.is_cancelled() and request.get_response_sender().close() is None else out(1)]")
    outcome = run_one(load(tmp_path, source, SINGLE), SINGLE, inputs=one(), is_cancelled=True)
    assert isinstance(outcome, Cancelled)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("sender.send(flags=FINAL); sender.send(out(1))", "has sent the FINAL flag"),
        ("sender.send()", "send takes a response, the flag"),
        ("sender.send(out(1), flags=2)", "flags takes 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL, not 2"),
        ("sender.send(3)", "send takes an InferenceResponse, not int"),
    ],
)
def test_wrong_use_of_a_sender_raises(tmp_path: Path, call: str, expected: str):
    source = model(
        "sender = request.get_response_sender()",
        f"try: {call}",
        "except pb_utils.TritonModelException as error: self.text = str(error)",
        "sender.close()",
    )
    instance = load(tmp_path, source, STREAM)
    run_one(instance, STREAM, inputs=one(), responses=Sink())
    assert expected in instance._model.text  # type: ignore[attr-defined]


def test_decoupled_execute_must_not_return_responses(tmp_path: Path):
    outcome = run_one(load(tmp_path, model("return [out(1)]"), STREAM), STREAM, inputs=one(), responses=Sink())
    assert "must return None" in text_of(outcome)


def test_ordinary_model_may_respond_through_its_sender_once(tmp_path: Path):
    source = model("request.get_response_sender().send(out(4), flags=FINAL)", "return [None]")
    outcome = run_one(load(tmp_path / "a", source, SINGLE), SINGLE, inputs=one())
    assert not isinstance(outcome, ServingError)
    assert outcome["OUT"].tolist() == [4]
    twice = model("sender = request.get_response_sender()", "sender.send(out(4))", "sender.send(out(4), flags=FINAL)", "return None")
    assert "more than one response" in text_of(run_one(load(tmp_path / "b", twice, SINGLE), SINGLE, inputs=one()))


def test_partial_response_of_a_stream_may_leave_outputs_out(tmp_path: Path):
    served = signature({"IN": ("INT32", [1])}, {"OUT": ("INT32", [1]), "MORE": ("FP32", [1])}, is_decoupled=True)
    sink = Sink()
    source = model("request.get_response_sender().send(out(1), flags=FINAL)")
    assert run_one(load(tmp_path, source, served), served, inputs=one(), responses=sink) == {}
    assert [list(response) for response in sink.taken] == [["OUT"]]


def test_async_execute_of_a_stream_responds(tmp_path: Path):
    sink = Sink()
    source = (
        HEAD
        + """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in range(3):
                await asyncio.sleep(0)
                sender.send(out(value))
            sender.send(flags=FINAL)
"""
    )
    instance = load(tmp_path, source, STREAM)
    assert run_one(instance, STREAM, inputs=one(), responses=sink) == {}
    instance.close()
    assert [response["OUT"].tolist() for response in sink.taken] == [[0], [1], [2]]


def test_inputs_of_a_finished_request_are_released(tmp_path: Path):
    import weakref

    instance = load(tmp_path, SQUARE_IN_THREADS, STREAM)
    item = Item(one(), ("OUT",), responses=Sink())
    reference = weakref.ref(item)
    runner = processor(instance, STREAM)
    runner.process([item])
    del item
    gc.collect()
    assert reference() is None
