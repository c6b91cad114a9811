import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.backend import Arrays
from stoker.backends.api.batch import BatchItem, BatchProcessor, BatchResult, Outcome, Share, processor_for
from stoker.backends.api.errors import BackendFailed, InvalidRequest, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_backend import FakeInstance, fake_signature
from tests.fakes.bound_instance import BoundInstance
from tests.fakes.outcomes import all_outputs, outputs_of


class TickingClock:
    """Every reading is one nanosecond after the last."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def now_ns(self) -> int:
        return next(self._ticks)

    def wall_ms(self) -> int:
        return 0


def item(array: np.ndarray, *outputs: str, name: str = "x") -> BatchItem:
    return BatchItem({name: array}, array.shape[0], outputs or ("y",))


def rows(*values: float, width: int = 2) -> np.ndarray:
    return np.array([[value] * width for value in values], dtype=np.float32)


def processor(instance: FakeInstance) -> BatchProcessor:
    return BatchProcessor(instance, instance.signature, TickingClock())


def failing_on(value: float) -> FakeInstance:
    instance = FakeInstance(fake_signature(2))
    instance.fail_if = lambda inputs: BackendFailed("cannot take this") if (inputs["x"] == value).any() else None
    return instance


def test_requests_run_as_one_batch_and_get_their_own_rows() -> None:
    instance = FakeInstance(fake_signature(2))
    result = processor(instance).process([item(rows(1)), item(rows(2, 3)), item(rows(4))])
    assert [outputs_of(o)["y"][:, 0].tolist() for o in result.outcomes] == [[1], [2, 3], [4]]
    assert [call.rows for call in instance.calls] == [4]
    assert result.executions == [4]


def test_time_is_counted_by_phase() -> None:
    result = processor(FakeInstance(fake_signature(2))).process([item(rows(1)), item(rows(2))])
    assert (result.input_ns, result.infer_ns, result.output_ns) == (1, 1, 1)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    dims=st.lists(st.integers(0, 3), max_size=3),
    datatype=st.sampled_from(list(DataType)),
    static=st.booleans(),
)
def test_batch_equals_its_requests_run_alone(sizes: list[int], dims: list[int], datatype: DataType, static: bool) -> None:
    instance = FakeInstance(fake_signature(*dims, max_batch_size=24, datatype=datatype), static_batch_size=24 if static else None)
    values = itertools.count(1)

    def tensor(count: int) -> np.ndarray:
        array = np.empty((count, *dims), dtype=datatype.numpy)
        for place in range(array.size):
            number = next(values)
            array.flat[place] = str(number).encode() if datatype.is_bytes else number % 2 if datatype is DataType.BOOL else number % 100
        return array

    items = [item(tensor(count)) for count in sizes]
    together = processor(instance).process(items)
    for one, outcome in zip(items, together.outcomes, strict=True):
        alone = processor(instance).process([one]).outcomes[0]
        for response in (outputs_of(outcome)["y"], outputs_of(alone)["y"]):
            assert response.dtype == datatype.numpy
            assert response.shape == one.inputs["x"].shape
            assert np.array_equal(response, one.inputs["x"])


def test_only_the_bad_request_fails_when_a_batch_fails() -> None:
    instance = failing_on(13)
    result = processor(instance).process([item(rows(1)), item(rows(13)), item(rows(3, 4))])
    assert outputs_of(result.outcomes[0])["y"][0, 0] == 1
    assert isinstance(result.outcomes[1], BackendFailed)
    assert outputs_of(result.outcomes[2])["y"][:, 0].tolist() == [3, 4]
    assert [call.rows for call in instance.calls] == [4, 1, 1, 2]
    assert result.executions == [1, 2]


def test_transient_failure_is_corrected_by_the_retry() -> None:
    instance = FakeInstance(fake_signature(2))
    instance.failures = [BackendFailed("once")]
    result = processor(instance).process([item(rows(1)), item(rows(2))])
    assert [outputs_of(o)["y"][0, 0] for o in result.outcomes] == [1, 2]


def test_lost_device_gets_no_retry_for_each_request_of_a_batch() -> None:
    instance = FakeInstance(fake_signature(2))
    instance.failures = [Unavailable("given up after 600 s")] * 9
    outcomes = processor(instance).process([item(rows(1)) for _ in range(8)]).outcomes
    assert [str(outcome) for outcome in outcomes] == ["given up after 600 s"] * 8
    assert len(instance.calls) == 3


def test_request_that_loses_the_device_fails_no_other_request() -> None:
    instance = FakeInstance(fake_signature(2))
    instance.fail_if = lambda inputs: Unavailable("reset") if (inputs["x"] == 7).any() else None
    outcomes = processor(instance).process([item(rows(7)), *(item(rows(1)) for _ in range(3)), item(rows(7))]).outcomes
    assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [True, False, False, False, True]


def test_single_request_is_not_retried() -> None:
    instance = FakeInstance(fake_signature(2))
    instance.failures = [InvalidRequest("no")]
    result = processor(instance).process([item(rows(1))])
    assert isinstance(result.outcomes[0], InvalidRequest)
    assert len(instance.calls) == 1
    assert result.executions == []


@given(bad=st.sets(st.integers(0, 7)))
def test_any_set_of_bad_requests_fails_alone(bad: set[int]) -> None:
    instance = FakeInstance(fake_signature(1))
    instance.fail_if = lambda inputs: BackendFailed("bad") if bad & set(inputs["x"].astype(int).ravel().tolist()) else None
    result = processor(instance).process([item(rows(value, width=1)) for value in range(8)])
    assert {place for place, outcome in enumerate(result.outcomes) if isinstance(outcome, ServingError)} == bad


def test_foreign_exception_becomes_a_backend_failure_with_its_cause() -> None:
    instance = FakeInstance(fake_signature(2))
    cause = ZeroDivisionError("division by zero")
    instance.failures = [cause]
    (failure,) = processor(instance).process([item(rows(1))]).outcomes
    assert isinstance(failure, BackendFailed)
    assert failure.message == "ZeroDivisionError: division by zero"
    assert failure.__cause__ is cause


def test_path_in_an_operating_system_error_is_not_sent_to_clients() -> None:
    instance = FakeInstance(fake_signature(2))
    instance.failures = [FileNotFoundError(2, "No such file or directory", "/srv/secret/file")]
    (failure,) = processor(instance).process([item(rows(1))]).outcomes
    assert isinstance(failure, BackendFailed)
    assert failure.message == "FileNotFoundError: No such file or directory"


def answer_with(**arrays: np.ndarray) -> FakeInstance:
    return FakeInstance(fake_signature(2), compute=lambda inputs, names: arrays)


@pytest.mark.parametrize(
    ("instance", "text"),
    [
        (answer_with(), "did not produce output(s) y"),
        (answer_with(y=np.zeros((1, 2), np.float64)), "came as float64, the signature says FP32"),
        (answer_with(y=np.zeros((3, 2), np.float32)), "expected 1 rows"),
        (answer_with(y=np.array(1, np.float32)), "expected 1 rows"),
        (answer_with(y=np.zeros((1, 5), np.float32)), "came with shape [5], the signature says [2]"),
        (answer_with(y=np.zeros((1, 2), np.float32), z=np.zeros(1)), "'z', which is not an output"),
        (FakeInstance(fake_signature(2), compute=lambda inputs, names: None), "AttributeError"),  # type: ignore[arg-type, return-value]
    ],
)
def test_instance_that_breaks_its_contract_is_named(instance: FakeInstance, text: str) -> None:
    (failure,) = processor(instance).process([item(rows(1))]).outcomes
    assert isinstance(failure, BackendFailed)
    assert text in failure.message


def test_unknown_input_is_a_failure() -> None:
    (failure,) = processor(FakeInstance(fake_signature(2))).process([item(rows(1), name="z")]).outcomes
    assert isinstance(failure, BackendFailed)
    assert "'z'" in failure.message


def two_in_two_out() -> ModelSignature:
    a, b = TensorSpec("a", DataType.FP32, (2,)), TensorSpec("b", DataType.FP32, (2,), optional=True)
    return ModelSignature((a, b), (TensorSpec("p", DataType.FP32, (2,)), TensorSpec("q", DataType.FP32, (2,))), 8)


def test_each_request_gets_only_its_requested_outputs() -> None:
    asked: list[tuple[str, ...]] = []

    def compute(inputs: Arrays, names: Sequence[str]) -> Arrays:
        asked.append(tuple(names))
        return {"p": inputs["a"].copy(), "q": inputs["a"] * 2}

    instance = FakeInstance(two_in_two_out(), compute=compute)
    both = {"a": rows(1), "b": rows(1)}
    result = processor(instance).process([BatchItem(both, 1, ("q",)), BatchItem(both, 1, ("q", "p")), BatchItem(both, 1, ("p",))])
    assert [list(outputs_of(o)) for o in result.outcomes] == [["q"], ["q", "p"], ["p"]]
    assert asked == [("q", "p")]


def test_requests_with_different_optional_inputs_never_share_a_run() -> None:
    def compute(inputs: Arrays, names: Sequence[str]) -> Arrays:
        return {"p": np.add(inputs["a"], inputs.get("b", np.float32(0))), "q": inputs["a"].copy()}

    instance = FakeInstance(two_in_two_out(), compute=compute)
    result = processor(instance).process([BatchItem({"a": rows(1)}, 1, ("p",)), BatchItem({"a": rows(1), "b": rows(5)}, 1, ("p",))])
    assert [outputs_of(o)["p"][0, 0] for o in result.outcomes] == [1, 6]
    assert [call.rows for call in instance.calls] == [1, 1]


def test_static_device_is_padded_with_zeros_not_with_an_earlier_batch() -> None:
    instance = FakeInstance(fake_signature(2, max_batch_size=4), static_batch_size=4)
    unit = processor(instance)
    unit.process([item(rows(99, 99, 99)), item(rows(99))])
    result = unit.process([item(rows(1))])
    assert instance.calls[-1].inputs["x"][:, 0].tolist() == [1, 0, 0, 0]
    assert outputs_of(result.outcomes[0])["y"].tolist() == [[1, 1]]


def test_strings_are_padded_with_empty_strings() -> None:
    instance = FakeInstance(fake_signature(1, max_batch_size=3, datatype=DataType.BYTES), static_batch_size=3)
    processor(instance).process([item(np.array([[b"a"]], dtype=object))])
    assert instance.calls[-1].inputs["x"].ravel().tolist() == [b"a", b"", b""]


def test_single_request_reaches_the_instance_without_a_copy() -> None:
    seen: list[np.ndarray] = []

    def compute(inputs: Arrays, names: Sequence[str]) -> Arrays:
        seen.append(inputs["x"])
        return {"y": inputs["x"].copy()}

    array = rows(1, 2)
    processor(FakeInstance(fake_signature(2), compute=compute)).process([item(array)])
    assert np.shares_memory(seen[0], array)


def test_single_request_that_is_not_contiguous_is_copied() -> None:
    seen: list[bool] = []

    def compute(inputs: Arrays, names: Sequence[str]) -> Arrays:
        seen.append(inputs["x"].flags.c_contiguous)
        return {"y": inputs["x"].copy()}

    array = rows(1, 2).T
    processor(FakeInstance(fake_signature(2), compute=compute)).process([item(array)])
    assert seen == [True]


@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_model_without_batch_dimension_gets_its_tensors_unchanged(shape: tuple[int, ...]) -> None:
    instance = FakeInstance(fake_signature(*shape, max_batch_size=0))
    array = np.ones(shape, np.float32)
    (outcome,) = processor(instance).process([BatchItem({"x": array}, 1, ("y",))]).outcomes
    assert instance.calls[0].inputs["x"].shape == shape
    assert outputs_of(outcome)["y"].shape == shape


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same values where no element of more than a byte may lie."""
    held = np.empty(array.nbytes + array.itemsize, np.uint8)
    start = (1 - held.ctypes.data) % array.itemsize
    moved = np.ndarray(array.shape, array.dtype, held.data, start)
    moved[...] = array
    assert not moved.flags.aligned
    return moved


@pytest.mark.parametrize("max_batch_size", [4, 0])
@pytest.mark.parametrize("reshape", [None, (3, 1)])
def test_instance_gets_aligned_arrays_for_any_offset_in_the_message(max_batch_size: int, reshape: tuple[int, ...] | None) -> None:
    spec = TensorSpec("x", DataType.FP32, (3,), reshape=reshape)
    instance = FakeInstance(ModelSignature((spec,), (TensorSpec("y", DataType.FP32, (3,), reshape=reshape),), max_batch_size))
    lead = (1,) if max_batch_size else ()
    result = processor(instance).process([item(unaligned(np.arange(3, dtype=np.float32).reshape((*lead, 3))))])
    assert instance.calls[0].inputs["x"].flags.aligned
    assert outputs_of(result.outcomes[0])["y"].reshape(-1).tolist() == [0, 1, 2]


def reshaping(dims: tuple[int, ...], reshape: tuple[int, ...], max_batch_size: int) -> ModelSignature:
    spec = TensorSpec("x", DataType.FP32, dims, reshape)
    return ModelSignature((spec,), (TensorSpec("y", DataType.FP32, dims, reshape),), max_batch_size)


@pytest.mark.parametrize(
    ("dims", "reshape", "request_dims", "model_dims"),
    [
        ((1,), (), (1,), ()),
        ((4,), (2, 2), (4,), (2, 2)),
        ((-1, 1, -1), (-1, -1), (1, 1, 4), (1, 4)),
        ((-1, -1), (-1, 1, -1), (3, 1), (3, 1, 1)),
        ((-1,), (1, -1), (0,), (1, 0)),
    ],
)
@pytest.mark.parametrize("requests", [0, 1, 2])
def test_reshape_is_applied_to_inputs_and_outputs(
    dims: tuple[int, ...], reshape: tuple[int, ...], request_dims: tuple[int, ...], model_dims: tuple[int, ...], requests: int
) -> None:
    instance = FakeInstance(reshaping(dims, reshape, 8 if requests else 0))
    lead = (1,) if requests else ()
    items = [BatchItem({"x": np.ones((*lead, *request_dims), np.float32)}, 1, ("y",)) for _ in range(max(1, requests))]
    result = processor(instance).process(items)
    assert instance.calls[0].inputs["x"].shape == ((requests,) if requests else ()) + model_dims
    assert all(outputs_of(o)["y"].shape == (*lead, *request_dims) for o in result.outcomes)


def test_request_strings_are_released_after_the_batch() -> None:
    instance = FakeInstance(fake_signature(1, datatype=DataType.BYTES))
    unit = processor(instance)
    unit.process([item(np.array([[b"a"]], dtype=object)), item(np.array([[b"b"]], dtype=object))])
    assert all(element is None for element in unit._buffers["x"].view(8, (1,)).ravel())


class EachToItself(BatchProcessor):
    """Runs requests one by one, and none in a batch that contains a 7."""

    def run_together(self, items: Sequence[Share], result: BatchResult) -> list[Outcome]:
        if any((item.inputs["x"] == 7).any() for item in items):
            raise ValueError("seven")
        result.executions.append(sum(item.rows for item in items))
        return [{"y": item.inputs["x"] * 2} for item in items]


def test_instance_with_its_own_processor_isolates_a_bad_request() -> None:
    instance = FakeInstance(fake_signature(2))
    assert type(processor_for(instance, instance.signature, TickingClock())) is BatchProcessor
    instance.batch_processor = EachToItself
    unit = processor_for(instance, instance.signature, TickingClock())
    first, second, third = unit.process([item(rows(1)), item(rows(7)), item(rows(2))]).outcomes
    assert [outputs_of(each)["y"].tolist() for each in (first, third)] == [[[2, 2]], [[4, 4]]]
    assert isinstance(second, BackendFailed)
    assert second.message == "ValueError: seven"
    assert instance.calls == []


@given(
    batches=st.lists(
        st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from([("y",), ("z",), ("z", "y")])), min_size=1),
        min_size=1,
        max_size=4,
    ),
    culprit=st.integers(0, 9),
    static=st.sampled_from([None, 64]),
    rejects=st.booleans(),
    most_rows=st.integers(0, 8),
)
def test_batch_in_bound_tensors_equals_one_in_buffers(
    batches: list[list[tuple[list[int], tuple[str, ...]]]], culprit: int, static: int | None, rejects: bool, most_rows: int
) -> None:
    """Request by request: outputs, errors, executions; one set of values fails in any batch."""
    outputs = tuple(TensorSpec(name, DataType.FP32, (2,)) for name in ("y", "z"))
    served = ModelSignature((TensorSpec("x", DataType.FP32, (2,)),), outputs, 64)

    def fails(inputs: Arrays) -> Exception | None:
        return InvalidRequest("no") if culprit and (inputs["x"] == culprit).any() else None

    bound = BoundInstance(served, static_batch_size=static, fail_if=fails)
    bound.rejects, bound.most_rows = rejects, 64 if static else most_rows
    plain = FakeInstance(served, static_batch_size=static, fail_if=fails)
    units = processor(bound), processor(plain)
    for batch in batches:
        items = [BatchItem({"x": rows(*values)}, len(values), wanted) for values, wanted in batch]
        one, other = (unit.process(items) for unit in units)
        assert one.executions == other.executions
        for first, second in zip(one.outcomes, other.outcomes, strict=True):
            if isinstance(second, ServingError):
                assert repr(first) == repr(second)
                continue
            assert list(outputs_of(first)) == list(second)
            for name, array in second.items():
                np.testing.assert_array_equal(outputs_of(first)[name], array)


class WithoutInit(BatchProcessor):
    """A processor that needs nothing of `BatchProcessor.__init__`, as those of devices with buffers of their own."""

    def __init__(self) -> None:
        pass

    def run_together(self, items: Sequence[Share], result: BatchResult) -> list[Outcome]:
        return [item.inputs for item in items]


def test_processor_of_a_device_need_not_call_the_initializer():
    items = [BatchItem({"x": np.full((1, 2), value)}, 1, ("x",)) for value in (1, 2)]
    assert [outcome["x"][0, 0] for outcome in all_outputs(WithoutInit().process(items).outcomes)] == [1, 2]
    rest = iter([items[1], None])
    assert [outcome["x"][0, 0] for outcome in all_outputs(WithoutInit().process_apart(items[0], lambda: next(rest)).outcomes)] == [1, 2]
