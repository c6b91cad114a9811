"""Ensembles with puppet workers and hand-turned time: batches, failures, cancellation, admission, and arrays that are never copied."""

import gc
import json
import weakref

import numpy as np
import pytest

from stoker.backends.api.errors import (
    BackendFailed,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    Overloaded,
    QueueTimeout,
    ServingError,
    Unavailable,
)
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.ensemble import Ensemble
from stoker.server.core.request import AccessNote, InferRequest
from stoker.server.core.sequence import SequenceMark
from tests.fakes.ensembles import EnsembleRig, StepModelRig, chain, diamond, signature, step


def test_requests_share_a_batch_at_every_step():
    rig = chain()
    for name in ("1", "2", "3"):
        rig.ask(name)
    assert rig.running() == {"first": [["1", "2", "3"]]}
    rig.ask("4")
    rig.finish("first")
    assert rig.running() == {"first": [["4"]], "second": [["1", "2", "3"]]}
    rig.finish("first")
    rig.finish("second")
    assert rig.running() == {"second": [["4"]]}
    rig.finish("second")
    assert list(rig.results) == ["1", "2", "3", "4"]
    assert rig.ended == ["1", "2", "3", "4"]
    assert [rig.models[name].worker.history for name in ("first", "second")] == [[[1, 1, 1], [1]], [[1, 1, 1], [1]]]
    assert rig.scheduler.in_flight == 0


def test_response_has_the_outputs_and_the_names_of_the_ensemble():
    rig = chain()
    rig.ask("1", inputs={"IN": np.full((2, 2), 5, np.float32)})
    rig.finish_all()
    response = rig.response("1")
    assert (response.model_name, response.model_version, response.request_id) == ("e", 3, "1")
    assert response.signature is rig.signature
    np.testing.assert_array_equal(response.outputs["OUT"], np.full((2, 2), 7, np.float32))
    assert response.parameters is None


def test_branches_run_at_the_same_time_and_the_join_waits_for_both():
    rig = diamond()
    rig.ask("1")
    assert rig.running() == {"split": [["1"]]}
    rig.finish("split")
    assert rig.running() == {"left": [["1"]], "right": [["1"]]}
    rig.finish("right")
    assert rig.running() == {"left": [["1"]]}
    rig.finish("left")
    assert rig.running() == {"join": [["1"]]}
    rig.finish("join")
    assert list(rig.response("1").outputs) == ["OUT", "l2"]


def test_only_the_steps_of_the_requested_outputs_run():
    rig = diamond()
    rig.ask("1", outputs=("l2",))
    rig.finish_all()
    assert list(rig.response("1").outputs) == ["l2"]
    assert [name for name, model in rig.models.items() if model.worker.history] == ["left", "split"]


def test_arrays_pass_between_steps_without_a_copy():
    rig = diamond()
    sent = np.ones((1, 2), np.float32)
    rig.ask("1", inputs={"IN": sent})
    rig.time.run()
    assert rig.models["split"].worker.works[0].items[0].inputs["x"] is sent
    left, right = np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32)
    rig.finish("split", [{"l": left, "r": right}])
    rig.time.run()
    assert rig.models["left"].worker.works[0].items[0].inputs["x"] is left
    assert rig.models["right"].worker.works[0].items[0].inputs["x"] is right
    out = np.zeros((1, 2), np.float32)
    rig.finish("left", [{"y": left}])
    rig.finish("right", [{"y": right}])
    rig.time.run()
    rig.finish("join", [{"y": out}])
    assert rig.response("1").outputs["OUT"] is out
    assert rig.response("1").outputs["l2"] is left


def test_failed_step_fails_the_request_at_once_and_cancels_its_siblings():
    rig = diamond()
    rig.ask("1")
    rig.ask("2")
    rig.time.run()
    rig.finish("split")
    rig.time.run()
    left = rig.models["left"].worker
    rig.finish("right", [BackendFailed("no luck"), {"y": np.zeros((1, 2), np.float32)}])
    error = rig.error("1")
    assert isinstance(error, BackendFailed)
    assert error.message == "in ensemble 'e', step 'right': no luck"
    assert [item.is_cancelled for item in left.requests] == [True, False]
    rig.finish_all()
    assert "2" in rig.results
    assert rig.log.failures == ["BACKEND"]
    assert rig.log.succeeded_rows == [1]
    assert rig.models["join"].worker.history == [[1]]


def test_step_in_a_queue_is_cancelled_by_the_failure_of_its_sibling():
    rig = diamond()
    rig.ask("0")
    rig.time.run()
    rig.finish("split")
    rig.time.run()  # "0" occupies left and right
    rig.ask("1")
    rig.time.run()
    rig.finish("split")
    rig.time.run()
    assert rig.models["left"].scheduler.queue_depth == 1
    rig.finish("right")
    rig.time.run()
    rig.finish("right", [BackendFailed("no luck")])
    assert rig.models["left"].scheduler.queue_depth == 0
    assert "1" in rig.results


@pytest.mark.parametrize("after", [0, 1])
def test_cancelled_request_cancels_the_step_that_runs(after: int):
    rig = chain()
    flight = rig.ask("1")
    rig.time.run()
    if after:
        rig.finish("first")
        rig.time.run()
    model = rig.models["second" if after else "first"]
    flight.cancel()
    assert model.worker.requests[0].is_cancelled
    rig.finish_all()
    assert rig.results == {}
    assert rig.ended == ["1"]
    assert rig.log.failures == ["CANCELED"]
    assert rig.scheduler.in_flight == 0


def test_requests_above_the_bound_in_flight_are_rejected_at_the_entry():
    rig = chain(max_inflight_requests=2)
    rig.ask("1")
    rig.ask("2")
    with pytest.raises(Overloaded, match=r"^Exceeds maximum queue size: 2 request\(s\) of the ensemble 'e' are in flight already$"):
        rig.ask("3")
    assert rig.log.failures == ["REJECTED"]
    rig.finish_all()
    rig.ask("4")
    rig.finish_all()
    assert list(rig.results) == ["1", "2", "4"]


def test_bound_of_the_queue_holds_if_the_ensemble_has_none():
    rig = chain(max_queue_size=1)
    rig.ask("1")
    with pytest.raises(Overloaded):
        rig.ask("2")


def test_first_step_with_a_full_queue_rejects_the_request():
    ensemble = Ensemble((step("a", {"x": "IN"}, {"y": "A"}), step("b", {"x": "IN"}, {"y": "B"})))
    rig = EnsembleRig(signature(["IN"], ["A", "B"]), ensemble, {"a": signature(["x"], ["y"]), "b": signature(["x"], ["y"])})
    rig.models["b"] = StepModelRig(rig.time, "b", rig.models["b"].signature, max_queue_size=1)
    rig.ask("1")
    with pytest.raises(Overloaded, match=r"^in ensemble 'e', step 'b': Exceeds maximum queue size"):
        rig.ask("2")
    assert rig.models["a"].scheduler.queue_depth == 1, "the step that was accepted is cancelled"
    assert rig.scheduler.in_flight == 1
    rig.finish_all()
    assert list(rig.results) == ["1"]


def test_later_step_with_a_full_queue_fails_the_request():
    rig = chain()
    rig.models["second"] = StepModelRig(rig.time, "second", rig.models["second"].signature, max_queue_size=1)
    rig.ask("1")
    rig.ask("2")
    rig.time.run()
    rig.finish("first")
    assert isinstance(rig.error("2"), Overloaded)
    assert rig.error("2").retry_after_s == 1.0
    rig.finish_all()
    assert "OUT" in rig.response("1").outputs
    assert rig.log.failures == ["REJECTED"]


def test_request_attributes_reach_every_step():
    rig = chain()
    mark = SequenceMark(9, is_start=True)
    now_ns = rig.time.now_ns()
    rig.ask("id", priority=2, timeout_us=5_000_000, deadline_ns=now_ns + 10**9, sequence=mark, parameters={"mine": 1})
    for name in ("first", "second"):
        rig.time.run()
        (item,) = rig.models[name].worker.works[0].items
        assert isinstance(item, InferRequest)
        assert (item.request_id, item.priority, item.timeout_us, item.deadline_ns) == ("id", 2, 5_000_000, now_ns + 10**9)
        assert item.sequence is mark
        assert item.parameters == {"mine": 1}
        assert item.model_name == name
        rig.finish(name)


def test_deadline_ends_a_step_that_waits():
    rig = chain()
    rig.ask("0")
    rig.time.run()
    rig.ask("1", deadline_ns=rig.time.now_ns() + 1_000_000)
    rig.time.run()
    rig.time.advance(2_000)
    error = rig.error("1")
    assert isinstance(error, DeadlineExceeded)
    assert error.message.startswith("in ensemble 'e', step 'first': ")


def test_deadline_that_has_passed_is_rejected():
    rig = chain()
    with pytest.raises(DeadlineExceeded, match="had passed"):
        rig.ask("1", deadline_ns=rig.time.now_ns())


def test_queue_timeout_of_the_request_holds_at_a_step():
    rig = chain()
    rig.ask("0")
    rig.time.run()
    rig.ask("1", timeout_us=1_000)
    rig.time.run()
    rig.time.advance(2_000)
    assert isinstance(rig.error("1"), QueueTimeout)
    assert "Request timeout expired" in rig.error("1").message


def test_step_times_are_in_the_response_on_request():
    rig = chain()
    rig.ask("1", parameters={"stoker_step_times": True})
    rig.time.advance(0)
    rig.finish_all()
    parameters = rig.response("1").parameters
    assert parameters is not None
    assert json.loads(str(parameters["stoker_step_times"])) == {
        "first": {"queue_us": 0, "compute_us": 0},
        "second": {"queue_us": 0, "compute_us": 0},
    }


def test_wrong_value_of_step_times_is_rejected():
    rig = chain()
    with pytest.raises(InvalidRequest, match=r"^parameter 'stoker_step_times' must be a boolean$"):
        rig.ask("1", parameters={"stoker_step_times": "yes"})


def test_statistics_of_the_ensemble_are_the_sums_of_its_steps():
    rig = chain()
    note = AccessNote()
    rig.ask("1", access=note)
    rig.finish_all()
    # The puppet's batches take 1, 2 and 3 ns.
    assert (note.compute_ns, note.input_ns, note.output_ns) == (12, 2, 6)
    assert rig.log.executions == [1]
    assert rig.log.succeeded_rows == [1]
    assert rig.log.queue_ns == [0]
    assert rig.models["first"].log.succeeded_rows == [1]


def test_optional_input_that_is_absent_is_left_out_of_the_step():
    ensemble = Ensemble((step("m", {"a": "IN", "b": "EXTRA"}, {"y": "OUT"}),))
    given = signature(["IN", "EXTRA"], ["OUT"], optional=["EXTRA"])
    rig = EnsembleRig(given, ensemble, {"m": signature(["a", "b"], ["y"], optional=["b"])})
    rig.ask("1", inputs={"IN": np.zeros((1, 2), np.float32)})
    rig.time.run()
    assert list(rig.models["m"].worker.works[0].items[0].inputs) == ["a"]
    rig.finish_all()
    assert "OUT" in rig.response("1").outputs


def test_output_that_a_step_leaves_out_is_left_out_of_the_response():
    rig = diamond()
    rig.ask("1")
    rig.time.run()
    rig.finish("split")
    rig.time.run()
    rig.finish("right")
    rig.finish("left")
    rig.time.run()
    rig.finish("join", [{}])
    assert list(rig.response("1").outputs) == ["l2"]


def test_missing_output_that_a_later_step_requires_fails_the_request():
    rig = chain()
    rig.ask("1")
    rig.time.run()
    rig.finish("first", [{}])
    assert rig.error("1").message == "in ensemble 'e', step 'second': input 'x' is missing: the tensor 'between' was not produced"


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((1, 3), np.float32), "input 'x' expects shape [-1, 2], but the tensor 'between' has [1, 3]"),
        (np.zeros(1, np.float32), "input 'x' expects shape [-1, 2], but the tensor 'between' has [1]"),
        (np.zeros((1, 2), np.float64), "input 'x' expects float32, but the tensor 'between' is float64"),
        (np.zeros((9, 2), np.float32), "the tensors have 9 rows, but the model takes batches of up to 8"),
    ],
)
def test_output_that_does_not_fit_the_next_step_fails_the_request(array: np.ndarray, text: str):
    rig = chain()
    rig.ask("1")
    rig.time.run()
    rig.finish("first", [{"b": array}])
    assert rig.error("1").message == f"in ensemble 'e', step 'second': {text}"


def test_inputs_of_different_rows_fail_the_request():
    ensemble = Ensemble((step("join", {"a": "A", "b": "B"}, {"y": "OUT"}),))
    given = ModelSignature(
        (TensorSpec("A", DataType.FP32, (-1, 2)), TensorSpec("B", DataType.FP32, (-1, 2))), (TensorSpec("OUT", DataType.FP32, (-1, 2)),), 0
    )
    rig = EnsembleRig(given, ensemble, {"join": signature(["a", "b"], ["y"])})
    with pytest.raises(BackendFailed, match=r"^in ensemble 'e', step 'join': input 'b' has 3 rows, but the other inputs have 2$"):
        rig.ask("1", inputs={"A": np.zeros((2, 2), np.float32), "B": np.zeros((3, 2), np.float32)})


def test_ensemble_without_batches_passes_rows_to_a_batched_step():
    ensemble = Ensemble((step("m", {"x": "IN"}, {"y": "OUT"}),))
    given = ModelSignature((TensorSpec("IN", DataType.FP32, (-1, 2)),), (TensorSpec("OUT", DataType.FP32, (-1, 2)),), 0)
    rig = EnsembleRig(given, ensemble, {"m": signature(["x"], ["y"])})
    rig.ask("1", inputs={"IN": np.zeros((3, 2), np.float32)})
    rig.ask("2", inputs={"IN": np.zeros((2, 2), np.float32)})
    rig.time.run()
    assert rig.models["m"].worker.rows == [3, 2]


def test_version_of_a_step_is_chosen_for_each_request():
    ensemble = Ensemble((step("first", {"a": "IN"}, {"b": "between"}, version=7), step("second", {"x": "between"}, {"y": "OUT"})))
    rig = EnsembleRig(signature(["IN"], ["OUT"]), ensemble, {"first": signature(["a"], ["b"]), "second": signature(["x"], ["y"])})
    rig.ask("1")
    rig.time.run()
    newer = rig.models["second"] = StepModelRig(rig.time, "second", signature(["x"], ["y"]))
    rig.finish("first")
    rig.time.run()
    assert newer.ids() == [["1"]]
    assert rig.asked == [("first", 7), ("second", None)]


def test_step_whose_new_version_has_other_tensors_is_unavailable():
    rig = chain()
    rig.models["first"] = StepModelRig(rig.time, "first", signature(["other"], ["b"]))
    with pytest.raises(Unavailable, match=r"^in ensemble 'e', step 'first': the version that serves now has no input 'a'$"):
        rig.ask("1")


def test_step_whose_model_is_gone_fails_the_request():
    rig = chain()
    rig.ask("1")
    rig.time.run()
    del rig.models["second"]
    rig.models["first"].worker.finish([{"b": np.zeros((1, 2), np.float32)}])
    assert isinstance(rig.error("1"), Unavailable)
    assert rig.error("1").message == "in ensemble 'e', step 'second': model 'second' does not serve"


def test_two_steps_may_run_one_model():
    ensemble = Ensemble((step("m", {"x": "IN"}, {"y": "t"}), step("m", {"x": "t"}, {"y": "OUT"})))
    rig = EnsembleRig(signature(["IN"], ["OUT"]), ensemble, {"m": signature(["x"], ["y"])})
    rig.ask("1", parameters={"stoker_step_times": True})
    rig.finish_all()
    np.testing.assert_array_equal(rig.response("1").outputs["OUT"], np.full((1, 2), 2, np.float32))
    parameters = rig.response("1").parameters
    assert parameters is not None
    assert list(json.loads(str(parameters["stoker_step_times"]))) == ["m", "m#2"]


def test_ensemble_of_an_ensemble_runs():
    inner = chain()
    ensemble = Ensemble((step("inner", {"IN": "IN"}, {"OUT": "OUT"}),))
    outer = EnsembleRig(inner.signature, ensemble, {"inner": inner.signature})
    outer.models["inner"] = inner  # type: ignore[assignment]
    inner.version = 1  # type: ignore[attr-defined]
    outer.ask("1")
    inner.time.run()
    inner.finish("first", [BackendFailed("no luck")])
    assert outer.error("1").message == "in ensemble 'e', step 'inner': in ensemble 'e', step 'first': no luck"


def test_abandon_fails_every_request_in_flight():
    rig = chain()
    rig.ask("1")
    rig.time.run()
    rig.scheduler.abandon("the server is shutting down")
    assert isinstance(rig.error("1"), Unavailable)
    assert rig.error("1").message == "the server is shutting down"
    assert rig.log.failures == ["OTHER"]
    rig.finish_all()
    assert rig.ended == ["1"]


def test_idle_is_reported_after_the_last_request():
    rig = chain()
    idle: list[int] = []
    rig.scheduler.on_idle = lambda: idle.append(rig.scheduler.in_flight)
    rig.ask("1")
    rig.ask("2")
    rig.finish_all()
    assert idle == [0]


def test_callback_that_raises_affects_no_other_request(caplog: pytest.LogCaptureFixture):
    rig = chain()

    def broken(result: object) -> None:
        raise RuntimeError("a defect")

    rig.scheduler.submit(rig.request("1"), broken)
    rig.ask("2")
    rig.finish_all()
    assert "OUT" in rig.response("2").outputs
    assert "the result callback of a request raised" in caplog.text


@pytest.mark.parametrize("end", ["response", "failure", "cancellation", "rejection"])
def test_tensors_of_a_request_are_freed_without_the_garbage_collector(end: str):
    rig = chain()
    gc.collect()
    gc.disable()
    try:
        sent = np.zeros((1, 2), np.float32)
        freed = weakref.ref(sent)
        if end == "rejection":
            rig.models["first"].scheduler._is_closed = True
            with pytest.raises(ServingError):
                rig.ask("1", inputs={"IN": sent})
        else:
            flight = rig.ask("1", inputs={"IN": sent})
            rig.time.run()
            if end == "failure":
                rig.finish("first", [BackendFailed("no luck")])
            elif end == "cancellation":
                flight.cancel()
            rig.finish_all()
            del flight
        rig.results.clear()
        rig.models["first"].worker.cancelled.clear()
        del sent
        assert freed() is None
    finally:
        gc.enable()


class BrokenModels(dict):
    """A table whose lookups fail in a way that nothing expects."""

    def __contains__(self, name: object) -> bool:
        raise RuntimeError("a defect")


def test_defect_between_two_steps_fails_the_request(caplog: pytest.LogCaptureFixture):
    rig = chain()
    rig.ask("1")
    rig.time.run()
    rig.models = BrokenModels(rig.models)
    rig.models["first"].worker.finish([{"b": np.zeros((1, 2), np.float32)}])
    assert isinstance(rig.error("1"), Internal)
    assert "ensemble 'e' failed unexpectedly at step 'first'" in caplog.text


def test_outage_of_a_step_is_an_outage_of_the_ensemble():
    rig = chain()
    assert (rig.scheduler.outage, rig.scheduler.is_lost) == ("", False)
    worker = rig.models["second"].worker
    worker.outage, worker.is_ejected = "its process has ended", True
    assert (rig.scheduler.outage, rig.scheduler.is_lost) == ("step 'second': its process has ended", True)
