"""Outputs that the model writes into the segment of their message: no copy in the worker process, and none of the edges is lost."""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from stoker.backends.api.backend import Instance
from stoker.backends.api.batch import BatchItem, BatchResult, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.layout import Array
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.knobs import read_knobs
from stoker.backends.onnx.session import OnnxInstance, session_options
from stoker.backends.worker.batches import BatchReader, BatchWriter, ResultReader, WorkerItem
from stoker.backends.worker.channel import INLINE_BYTES, Channel
from stoker.backends.worker.main import WorkerMain
from stoker.backends.worker.output_segment import LEAST_BYTES, OutputSegment
from stoker.backends.worker.protocol import FREED, RUN
from stoker.backends.worker.segments import MOST_HELD
from tests.fakes.outcomes import all_outputs

#: Elements of a row: two rows are worth a place.
WIDTH = LEAST_BYTES // 8
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT32


def instance(
    of: ModelSignature,
    nodes: "Sequence[tuple[str, list[str], list[str]]]",
    *,
    static: int | None = None,
    element: int = FLOAT,
    **attributes: Any,
) -> OnnxInstance:
    """A session of `nodes`, `(operator, inputs, outputs)`, on tensors of `element` with every dimension open."""
    inputs, outputs = (
        [helper.make_tensor_value_info(s.name, element, ["n", f"m_{s.name}"]) for s in side] for side in (of.inputs, of.outputs)
    )
    graph = helper.make_graph([helper.make_node(*node, **attributes) for node in nodes], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = session_options(read_knobs({}, None, cpu_threads=1))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return OnnxInstance(session, of, static_batch_size=static, shrink_arena=False)


def signature(inputs: Sequence[str], outputs: Sequence[str], width: int = WIDTH, datatype: DataType = DataType.FP32) -> ModelSignature:
    return ModelSignature(
        tuple(TensorSpec(n, datatype, (width,)) for n in inputs), tuple(TensorSpec(n, datatype, (width,)) for n in outputs), 8
    )


def item(rows: int, value: float, wanted: Sequence[str], width: int = WIDTH, names: Sequence[str] = ("x",)) -> BatchItem:
    return BatchItem({name: np.full((rows, width), value, np.float32) for name in names}, rows, tuple(wanted))


SUMS = signature("x", ("double", "negative"))
SUM_NODES = [("Add", ["x", "x"], ["double"]), ("Neg", ["x"], ["negative"])]


class Crossing:
    """Batches that cross a channel, run in the code of the worker process, and come back."""

    def __init__(self, served: Instance, of: ModelSignature) -> None:
        self.server, end = Channel.pair()
        self.worker = Channel(end)
        self.main = WorkerMain(self.worker)
        served.place_outputs(self.main._outputs)
        self.processor = processor_for(served, of, SystemClock())
        self.writer = BatchWriter(of, with_facts=False)
        self.reader = BatchReader()
        self.results = ResultReader()
        #: What the instance returned last.
        self.returned: dict[str, Array] = {}
        #: Bytes of the tensors of the last result.
        self.result_bytes = 0
        execute = served.execute

        def watched(inputs: Any, names: Any) -> Any:
            outputs = execute(inputs, names)
            self.returned = dict(outputs)
            return outputs

        served.execute = watched  # type: ignore[method-assign,assignment]

    def run(self, *items: BatchItem) -> BatchResult:
        outgoing = self.writer.message(items)
        self.server.send(RUN, 1, 0, outgoing.meta, outgoing.size_bytes, outgoing.write, payload=outgoing.payload)
        batch = self.reader.read(self.worker.receive())
        self.main._run(self.processor, 1, batch)
        del batch
        done = self.server.receive()
        self.result_bytes = done.payload.size
        result = self.results.read(done, items)
        if self.server.unreported > 1:
            self.server.send(FREED)
            self.worker.receive()
        return result

    def used(self) -> list[int]:
        """The slots of the worker that are in use."""
        return [segment.slot for segment in self.worker._outbox._segments if segment is not None and segment.is_used]

    def is_placed(self, array: Array) -> bool:
        """Whether `array` lies in a segment of the worker."""
        segments = [np.frombuffer(each.memory, np.uint8) for each in self.worker._outbox._segments if each is not None]
        return any(np.shares_memory(array, segment) for segment in segments)

    def is_view(self, array: Array) -> bool:
        """Whether `array` lies in a segment that the server has mapped."""
        return any(np.shares_memory(array, np.frombuffer(each, np.uint8)) for each in self.server._inbox._maps if each is not None)

    def close(self) -> None:
        self.server.close()
        self.worker.close()


def values(result: BatchResult, name: str) -> list[list[float]]:
    """The different values of an output, by request."""
    return [np.unique(outputs[name]).tolist() for outputs in all_outputs(result.outcomes)]


Opener = Callable[[OnnxInstance, ModelSignature], Crossing]


@pytest.fixture
def crossing() -> Iterator[Opener]:
    """Makes crossings, and closes them."""
    opened: list[Crossing] = []

    def open_one(served: OnnxInstance, of: ModelSignature) -> Crossing:
        opened.append(Crossing(served, of))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def sums(crossing: Opener) -> Crossing:
    return crossing(instance(SUMS, SUM_NODES), SUMS)


def test_outputs_are_written_where_the_server_reads_them(sums):
    for _ in range(3):
        result = sums.run(item(2, 1.0, ("double", "negative")), item(1, 3.0, ("double", "negative")))
        assert [sums.is_placed(array) for array in sums.returned.values()] == [True, True]
        first, second = all_outputs(result.outcomes)
        assert all(sums.is_view(array) for outputs in (first, second) for array in outputs.values())
        # The same memory in both processes: what changes on one side changes on the other.
        sums.returned["double"][0, 0] = 77.0
        assert first["double"][0, 0] == 77.0
        assert (np.unique(first["negative"]).tolist(), np.unique(second["double"]).tolist()) == ([-1.0], [6.0])
        assert [array.shape for array in second.values()] == [(1, WIDTH)] * 2
        del result, first, second


def test_lone_requests_use_one_segment_in_turn(sums):
    for value in range(5):
        assert values(sums.run(item(2, value, ("double",))), "double") == [[2.0 * value]]
    assert len([segment for segment in sums.worker._outbox._segments if segment is not None]) == 1


def test_run_keeps_no_reference_to_the_segment_of_its_inputs(sums):
    sums.run(item(2, 1.0, ("double",)))
    assert (sums.worker._inbox.held, sums.server._outbox._segments[0].is_used) == (0, False)


def test_results_that_the_server_keeps_are_not_overwritten(sums):
    kept = [sums.run(item(2, value, ("double", "negative"))) for value in range(3 * MOST_HELD)]
    assert [values(result, "double") for result in kept] == [[[2.0 * value]] for value in range(3 * MOST_HELD)]
    assert [values(result, "negative") for result in kept] == [[[-1.0 * value]] for value in range(3 * MOST_HELD)]


def test_only_wanted_outputs_cross(sums):
    result = sums.run(item(2, 1.0, ("negative",)))
    assert (values(result, "negative"), sums.result_bytes) == ([[-1.0]], 2 * WIDTH * 4)
    result = sums.run(item(1, 1.0, ("negative",)), item(1, 2.0, ("double",)))
    first, second = all_outputs(result.outcomes)
    assert (list(first), list(second)) == (["negative"], ["double"])
    assert (np.unique(first["negative"]).tolist(), np.unique(second["double"]).tolist()) == ([-1.0], [4.0])


def test_small_outputs_are_copied_into_their_message(crossing):
    of = signature("x", ("double", "negative"), width=4)
    small = crossing(instance(of, SUM_NODES), of)
    assert values(small.run(item(2, 1.0, ("double",), width=4)), "double") == [[2.0]]
    assert small.worker.allocated_bytes == 0


def test_rows_of_padding_are_not_sent(crossing):
    served = crossing(instance(SUMS, SUM_NODES, static=8), SUMS)
    result = served.run(item(3, 2.0, ("double",)))
    assert (values(result, "double"), served.result_bytes) == ([[4.0]], 3 * WIDTH * 4)
    assert served.returned["double"].shape == (8, WIDTH)
    assert served.is_placed(served.returned["double"])


def test_segment_is_free_if_its_outputs_without_padding_fit_a_datagram(crossing):
    width = INLINE_BYTES // 16
    of = signature("x", ("double",), width=width)
    served = crossing(instance(of, SUM_NODES[:1], static=LEAST_BYTES // width), of)
    assert values(served.run(item(1, 2.0, ("double",), width=width)), "double") == [[4.0]]
    assert served.is_placed(served.returned["double"])
    assert served.used() == []


@pytest.mark.parametrize("wanted", [("x", "y", "z"), ("z", "x"), ("x",)])
def test_output_that_is_an_input_or_another_output_has_its_own_values(crossing, wanted):
    """ONNX Runtime leaves the bound memory of such an output as it is."""
    of = signature("x", ("x", "y", "z"))
    served = crossing(instance(of, [("Neg", ["x"], ["y"]), ("Identity", ["y"], ["z"])]), of)
    kept = [served.run(item(2, value, wanted)) for value in (1.0, 2.0, 3.0)]
    for name, sign in zip("xyz", (1, -1, -1), strict=True):
        if name in wanted:
            assert [values(result, name) for result in kept] == [[[sign * value]] for value in (1.0, 2.0, 3.0)]
    assert served.worker._inbox.held == 0


PICKING = signature(("a", "b"), ("sum",), datatype=DataType.INT32)


@pytest.fixture
def picking(crossing: Opener) -> Crossing:
    """The elements of `a` in the columns `b`: a column that there is not fails the run."""
    return crossing(instance(PICKING, [("GatherElements", ["a", "b"], ["sum"])], element=INT, axis=1), PICKING)


def picked(value: int, column: int, rows: int = 2) -> BatchItem:
    return BatchItem({"a": np.full((rows, WIDTH), value, np.int32), "b": np.full((rows, WIDTH), column, np.int32)}, rows, ("sum",))


def test_failed_run_gives_the_segment_back(picking):
    for value in range(10):
        [failure] = picking.run(picked(1, WIDTH)).outcomes
        assert isinstance(failure, BackendFailed)
        assert "Out of range" in failure.message
        assert picking.used() == []
        assert values(picking.run(picked(value, 1)), "sum") == [[value]]
        assert picking.is_placed(picking.returned["sum"])


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("columns", [(WIDTH,), (1, WIDTH, 2), (WIDTH, WIDTH, 1)], ids=["alone", "one of three", "two of three"])
def test_failed_batch_is_freed_without_the_garbage_collector(picking, columns):
    def held() -> int:
        return sum([isinstance(each, WorkerItem | BatchResult) for each in gc.get_objects()])

    before = held()
    for _ in range(3):
        failures = [isinstance(each, BackendFailed) for each in picking.run(*(picked(4, column) for column in columns)).outcomes]
        assert failures == [column == WIDTH for column in columns]
    assert held() == before


@pytest.mark.usefixtures("no_collector")
def test_request_that_fails_its_batch_costs_the_others_no_result(picking):
    for _ in range(5):
        good, failure, other = picking.run(picked(3, 1), picked(4, WIDTH), picked(5, 2)).outcomes
        assert isinstance(failure, BackendFailed)
        assert not isinstance(good, Exception)
        assert not isinstance(other, Exception)
        assert [np.unique(outputs["sum"]).tolist() for outputs in (good, other)] == [[3], [5]]
        del good, other
    del failure
    assert values(picking.run(picked(6, 1)), "sum") == [[6]]
    assert len(picking.used()) <= 1


def test_model_with_outputs_of_another_shape_than_declared_fails_as_without_memory(crossing):
    of = ModelSignature(SUMS.inputs, (TensorSpec("double", DataType.FP32, (WIDTH + 1,)),), 8)
    served = crossing(instance(of, SUM_NODES[:1]), of)
    for _ in range(2):
        [failure] = served.run(item(2, 1.0, ("double",))).outcomes
        assert isinstance(failure, BackendFailed)
        assert "the signature says" in failure.message
    assert served.used() == []


@pytest.mark.parametrize("others", [4, WIDTH, 8 * WIDTH])
@pytest.mark.parametrize("wanted", [("double", "negative"), ("negative", "double")])
def test_output_of_unknown_shape_stands_behind_the_others(crossing, others, wanted):
    """`negative` is as wide as `y`; where it does not fit the segment, all outputs go into a larger one."""
    inputs = (TensorSpec("x", DataType.FP32, (WIDTH,)), TensorSpec("y", DataType.FP32, (-1,)))
    of = ModelSignature(inputs, (TensorSpec("double", DataType.FP32, (WIDTH,)), TensorSpec("negative", DataType.FP32, (-1,))), 8)
    served = crossing(instance(of, [("Add", ["x", "x"], ["double"]), ("Neg", ["y"], ["negative"])]), of)
    for value in (1.0, 2.0):
        sent = BatchItem({"x": np.full((2, WIDTH), value, np.float32), "y": np.full((2, others), value, np.float32)}, 2, wanted)
        result = served.run(sent)
        assert (values(result, "double"), values(result, "negative")) == ([[2 * value]], [[-value]])
        assert [outputs["negative"].shape for outputs in all_outputs(result.outcomes)] == [(2, others)]
        assert served.is_placed(served.returned["double"])
        assert len(served.used()) == 1
        del result


@pytest.mark.parametrize("error", [None, OSError(28, "No space left on device")])
def test_without_a_free_segment_outputs_are_copied(sums, monkeypatch, error):
    def reserve(size_bytes: int) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(sums.worker, "reserve", reserve)
    assert values(sums.run(item(2, 4.0, ("double",))), "double") == [[8.0]]
    assert not sums.is_placed(sums.returned["double"])


def test_model_without_a_batch_dimension_writes_into_the_segment(crossing):
    of = ModelSignature((TensorSpec("x", DataType.FP32, (3, WIDTH)),), (TensorSpec("double", DataType.FP32, (3, WIDTH)),), 0)
    served = crossing(instance(of, SUM_NODES[:1]), of)
    sent = BatchItem({"x": np.ones((3, WIDTH), np.float32)}, 1, ("double",))
    assert values(served.run(sent), "double") == [[2.0]]
    assert served.is_placed(served.returned["double"])


def test_closed_instance_runs_nothing(crossing):
    served = instance(SUMS, SUM_NODES)
    crossed = crossing(served, SUMS)
    served.close()
    [failure] = crossed.run(item(2, 1.0, ("double",))).outcomes
    assert isinstance(failure, BackendFailed)
    assert "the session is closed" in failure.message


# -- the memory itself


@pytest.fixture
def memory() -> Iterator[OutputSegment]:
    server, end = Channel.pair()
    worker = Channel(end)
    yield OutputSegment(worker)
    worker.close()
    server.close()


def test_arrays_of_one_batch_do_not_overlap(memory):
    small = [((3, 5), np.dtype(np.int8)), ((), np.dtype(np.float64)), ((0, 4), np.dtype(np.int32))]
    first, second = ([*small, ((size_bytes,), np.dtype(np.uint8))] for size_bytes in (LEAST_BYTES * 5 // 2, LEAST_BYTES))
    arrays = [*memory.arrays(first), *memory.arrays(second)]
    for number, array in enumerate(arrays):
        array[...] = number
    assert [(array.shape, array.dtype) for array in arrays] == [*first, *second]
    assert [np.unique(array).tolist() for array in arrays if array.size] == [[0], [1], [3], [4], [5], [7]]
    offsets = [memory.offset_of(array) for array in arrays]
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    assert memory.offset_of(arrays[3][1:]) == -1  # a message's blocks are aligned
    assert memory.offset_of(arrays[3][::2]) == -1
    assert memory.offset_of(np.zeros(LEAST_BYTES, np.uint8)) == -1


def test_outputs_beyond_the_segment_of_their_batch_get_none(memory):
    layout = ((LEAST_BYTES + 1,), np.dtype(np.uint8))
    found = [memory.arrays([layout]) for _ in range(3)]
    assert [arrays is None for arrays in found] == [False, True, True]
    segment = memory.take()
    assert segment.is_used
    assert (memory.take(), memory.used_bytes, memory.offset_of(found[0][0])) == (None, 0, -1)
    assert memory.arrays([layout]) is not None


def test_closed_channel_has_no_memory(memory):
    memory._channel.close()
    assert memory.arrays([((LEAST_BYTES,), np.dtype(np.uint8))]) is None
