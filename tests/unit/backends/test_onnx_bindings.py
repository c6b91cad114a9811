"""Small models run in tensors bound beforehand and compute as without."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from stoker.backends.api.backend import Arrays
from stoker.backends.api.batch import BatchItem, BatchProcessor
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed, ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.bindings import MOST_BYTES, MOST_SIZES, are_worth_it
from stoker.backends.onnx.knobs import read_knobs
from stoker.backends.onnx.session import OnnxInstance, session_options
from tests.fakes.outcomes import all_outputs


def signature(size: int = 4, max_batch_size: int = 8, datatype: DataType = DataType.FP32, output_size: int | None = None) -> ModelSignature:
    inputs = tuple(TensorSpec(name, datatype, (size,)) for name in ("a", "b"))
    outputs = tuple(TensorSpec(name, datatype, (output_size or size,)) for name in ("sum", "difference"))
    return ModelSignature(inputs, outputs, max_batch_size)


def instance(of: ModelSignature) -> OnnxInstance:
    """a + b and a - b, with every dimension open."""
    element = TensorProto.FLOAT
    tensors = {name: helper.make_tensor_value_info(name, element, ["n", "m"]) for name in ("a", "b", "sum", "difference")}
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    graph = helper.make_graph(nodes, "g", [tensors["a"], tensors["b"]], [tensors["sum"], tensors["difference"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = ort.InferenceSession(
        model.SerializeToString(), session_options(read_knobs({}, None, cpu_threads=1)), providers=["CPUExecutionProvider"]
    )
    return OnnxInstance(session, of, static_batch_size=None, shrink_arena=False)


def some(rows: int, size: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.random((rows, size), dtype=np.float32) for name in ("a", "b")}


def run(
    served: OnnxInstance, of: ModelSignature, *batch: Arrays, wanted: tuple[str, ...] = ("sum", "difference")
) -> list[dict[str, np.ndarray]]:
    """The responses to `batch`, by the processor of the server."""
    items = [BatchItem(inputs, len(inputs["a"]), wanted) for inputs in batch]
    return all_outputs(BatchProcessor(served, of, SystemClock()).process(items).outcomes)


def test_bindings_return_the_results_of_an_ordinary_run_at_every_batch_size():
    served = instance(signature())
    for seed, rows in enumerate([1, 8, 3, 1, 8, 8, 3]):
        inputs = some(rows, seed=seed)
        [outputs] = run(served, signature(), inputs)
        np.testing.assert_array_equal(outputs["sum"], inputs["a"] + inputs["b"])
        np.testing.assert_array_equal(outputs["difference"], inputs["a"] - inputs["b"])
    assert served.bound(8) is not None


@pytest.mark.parametrize("static", [None, 8])
def test_requests_that_share_bound_tensors_get_their_own_rows(static: int | None):
    served = instance(signature())
    served.static_batch_size = static
    for seeds in ((1, 2, 3), (4, 5)):
        batch = [some(rows, seed=seed) for rows, seed in zip((1, 2, 3), seeds, strict=False)]
        for inputs, outputs in zip(batch, run(served, signature(), *batch), strict=True):
            np.testing.assert_array_equal(outputs["sum"], inputs["a"] + inputs["b"])


def test_padding_rows_are_zero_after_any_batch():
    served = instance(signature())
    served.static_batch_size = 8
    run(served, signature(), some(8))
    run(served, signature(), some(2))
    bound = served.bound(8)
    assert bound is not None
    assert not bound.inputs["a"][2:].any()


def test_output_is_not_overwritten_by_the_next_batch():
    served = instance(signature())
    first, second = some(2, seed=1), some(2, seed=2)
    kept = run(served, signature(), first)[0]["sum"]
    run(served, signature(), second)
    np.testing.assert_array_equal(kept, first["a"] + first["b"])


def test_request_for_some_outputs_gets_only_those():
    [outputs] = run(instance(signature()), signature(), some(2), wanted=("difference",))
    assert list(outputs) == ["difference"]


def test_bound_tensors_have_the_shapes_of_requests_if_the_models_differ():
    shaped = ModelSignature(
        tuple(TensorSpec(name, DataType.FP32, (2, 2), reshape=(4,)) for name in ("a", "b")),
        tuple(TensorSpec(name, DataType.FP32, (2, 2), reshape=(4,)) for name in ("sum", "difference")),
        8,
    )
    inputs = {name: array.reshape(3, 2, 2) for name, array in some(3).items()}
    [outputs] = run(instance(shaped), shaped, inputs)
    np.testing.assert_array_equal(outputs["sum"], inputs["a"] + inputs["b"])


def test_model_with_outputs_that_differ_from_its_declaration_runs_without_bindings():
    of = signature(output_size=5)
    served = instance(of)
    with pytest.raises(BackendFailed, match="the signature says"):
        run(served, of, some(2))
    assert served.bound(2) is None


def test_failed_request_does_not_disable_the_bindings():
    served = picking()
    good, bad = ({"a": np.array([[5, 6, 7, 8]], np.int32), "b": np.full((1, 4), column, np.int32)} for column in (2, 9))
    assert run(served, PICKING, good, wanted=("sum",))[0]["sum"].tolist() == [[7] * 4]
    with pytest.raises(BackendFailed):
        run(served, PICKING, bad, wanted=("sum",))
    assert served.bound(1) is not None
    assert run(served, PICKING, good, wanted=("sum",))[0]["sum"].tolist() == [[7] * 4]


def test_number_of_bound_batch_sizes_is_limited():
    of = signature(size=1, max_batch_size=100)
    served = instance(of)
    for rows in range(1, 101):
        inputs = some(rows, size=1)
        np.testing.assert_array_equal(run(served, of, inputs)[0]["sum"], inputs["a"] + inputs["b"])
    assert [rows for rows in range(1, 101) if served.bound(rows) is not None] == list(range(1, MOST_SIZES + 1))


PICKING = ModelSignature(
    tuple(TensorSpec(name, DataType.INT32, (4,)) for name in ("a", "b")), (TensorSpec("sum", DataType.INT32, (4,)),), 8
)


def picking() -> OnnxInstance:
    """The elements of `a` in the columns `b`: a column that there is not fails the run."""
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.INT32, ["n", 4]) for name in ("a", "b", "sum")}
    node = helper.make_node("GatherElements", ["a", "b"], ["sum"], axis=1)
    graph = helper.make_graph([node], "g", [tensors["a"], tensors["b"]], [tensors["sum"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = ort.InferenceSession(
        model.SerializeToString(), session_options(read_knobs({}, None, cpu_threads=1)), providers=["CPUExecutionProvider"]
    )
    return OnnxInstance(session, PICKING, static_batch_size=None, shrink_arena=False)


def passing_through(datatype: DataType = DataType.FP32) -> tuple[OnnxInstance, ModelSignature]:
    """Outputs: the graph input `x` itself, and `y`, computed from it; `y` is of `datatype`."""
    elements = {DataType.FP32: TensorProto.FLOAT, DataType.BF16: TensorProto.BFLOAT16}
    x, y = (helper.make_tensor_value_info(name, of, ["n", 4]) for name, of in (("x", TensorProto.FLOAT), ("y", elements[datatype])))
    node = helper.make_node("Cast", ["x"], ["y"], to=elements[datatype])
    model = helper.make_model(helper.make_graph([node], "g", [x], [x, y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = ort.InferenceSession(
        model.SerializeToString(), session_options(read_knobs({}, None, cpu_threads=1)), providers=["CPUExecutionProvider"]
    )
    outputs = (TensorSpec("x", DataType.FP32, (4,)), TensorSpec("y", datatype, (4,)))
    served = ModelSignature((TensorSpec("x", DataType.FP32, (4,)),), outputs, 8)
    return OnnxInstance(session, served, static_batch_size=None, shrink_arena=False), served


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.BF16])
def test_output_that_is_an_input_has_the_values_of_its_own_request(datatype: DataType):
    """ONNX Runtime does not write such an output into bound memory, and may return the memory of the input itself."""
    served, of = passing_through(datatype)
    array = np.zeros((3, 4), np.float32)
    responses = []
    for number in (1.0, 2.0, 3.0):
        array[...] = number
        [outcome] = BatchProcessor(served, of, SystemClock()).process([BatchItem({"x": array}, 3, ("x", "y"))]).outcomes
        assert not isinstance(outcome, ServingError)
        responses.append(outcome["x"])
    assert [np.unique(response).tolist() for response in responses] == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (signature(), True),
        (signature(size=MOST_BYTES // 4 // 4 // 8), True),
        (signature(size=MOST_BYTES // 4 // 4 // 8 + 1), False),
        (signature(max_batch_size=0), True),
        (signature(size=-1), False),
        (signature(datatype=DataType.BYTES), False),
        (signature(datatype=DataType.BF16), False),
    ],
)
def test_bindings_are_used_for_small_batches_of_numbers_with_known_shapes(of, expected):
    assert are_worth_it(of) == expected


def test_model_without_a_batch_dimension_runs_in_bound_tensors():
    tensors = {name: TensorSpec(name, DataType.FP32, (3, 4)) for name in ("a", "b", "sum", "difference")}
    of = ModelSignature((tensors["a"], tensors["b"]), (tensors["sum"], tensors["difference"]), 0)
    served = instance(of)
    kept = []
    for seed in (1, 2):
        inputs = some(3, seed=seed)
        outcomes = BatchProcessor(served, of, SystemClock()).process([BatchItem(inputs, 1, ("difference", "sum"))]).outcomes
        [outputs] = all_outputs(outcomes)
        assert list(outputs) == ["difference", "sum"]
        kept.append((outputs["sum"], inputs["a"] + inputs["b"]))
    for found, expected in kept:
        np.testing.assert_array_equal(found, expected)
    assert served.bound(1) is not None


def test_closed_instance_releases_its_session_though_a_processor_keeps_the_tensors():
    served = instance(signature())
    processor = BatchProcessor(served, signature(), SystemClock())
    assert len(all_outputs(processor.process([BatchItem(some(1), 1, ("sum",))]).outcomes)) == 1
    served.close()
    [outcome] = processor.process([BatchItem(some(1), 1, ("sum",))]).outcomes
    assert isinstance(outcome, BackendFailed)
    assert "the session is closed" in str(outcome)
