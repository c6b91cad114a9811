"""Small models run on places bound beforehand, and answer as they do without."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from stoker.backends.api.backend import Arrays
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.bindings import MOST_BYTES, MOST_SIZES, are_worth_it
from stoker.backends.onnx.knobs import read_knobs
from stoker.backends.onnx.session import OnnxInstance, session_options


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


def some(rows: int, size: int = 4, seed: int = 0) -> Arrays:
    generator = np.random.default_rng(seed)
    return {name: generator.random((rows, size), dtype=np.float32) for name in ("a", "b")}


def test_bindings_return_the_results_of_an_ordinary_run_at_every_batch_size():
    served = instance(signature())
    for seed, rows in enumerate([1, 8, 3, 1, 8, 8, 3]):
        inputs = some(rows, seed=seed)
        outputs = served.execute(inputs, ("sum", "difference"))
        np.testing.assert_array_equal(outputs["sum"], inputs["a"] + inputs["b"])
        np.testing.assert_array_equal(outputs["difference"], inputs["a"] - inputs["b"])
    assert served._bindings is not None


def test_output_is_not_overwritten_by_the_next_batch():
    served = instance(signature())
    first, second = some(2, seed=1), some(2, seed=2)
    kept = served.execute(first, ("sum", "difference"))["sum"]
    served.execute(second, ("sum", "difference"))
    np.testing.assert_array_equal(kept, first["a"] + first["b"])


def test_request_for_some_outputs_gets_only_those():
    served = instance(signature())
    inputs = some(2)
    assert list(served.execute(inputs, ("difference",))) == ["difference"]


def test_model_with_outputs_that_differ_from_its_declaration_runs_without_bindings():
    served = instance(signature(output_size=5))
    assert served.execute(some(2), ("sum", "difference"))["sum"].shape == (2, 4)
    assert served._bindings is None


def test_failed_request_does_not_disable_the_bindings():
    served = instance(signature())
    good = served.execute(some(1), ("sum", "difference"))
    with pytest.raises(BackendFailed):
        served.execute({"a": np.zeros((1, 4), np.float32), "b": np.zeros((1, 7), np.float32)}, ("sum", "difference"))
    assert served._bindings is not None
    np.testing.assert_array_equal(served.execute(some(1), ("sum", "difference"))["sum"], good["sum"])


def test_number_of_bound_batch_sizes_is_limited():
    served = instance(signature(size=1, max_batch_size=100))
    for rows in range(1, 101):
        inputs = some(rows, size=1)
        np.testing.assert_array_equal(served.execute(inputs, ("sum", "difference"))["sum"], inputs["a"] + inputs["b"])
    assert served._bindings is not None
    assert len(served._bindings) == MOST_SIZES


def passing_through(datatype: DataType = DataType.FP32) -> OnnxInstance:
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
    return OnnxInstance(session, served, static_batch_size=None, shrink_arena=False)


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.BF16])
def test_output_that_is_an_input_has_the_values_of_its_own_request(datatype: DataType):
    """ONNX Runtime does not write such an output into bound memory, and may return the memory of the input itself."""
    served = passing_through(datatype)
    array = np.zeros((3, 4), np.float32)
    answers = []
    for number in (1.0, 2.0, 3.0):
        array[...] = number
        answers.append(served.execute({"x": array}, ("x", "y"))["x"])
    assert [np.unique(answer).tolist() for answer in answers] == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (signature(), True),
        (signature(size=MOST_BYTES // 4 // 4 // 8), True),
        (signature(size=MOST_BYTES // 4 // 4 // 8 + 1), False),
        (signature(max_batch_size=0), False),
        (signature(size=-1), False),
        (signature(datatype=DataType.BYTES), False),
        (signature(datatype=DataType.BF16), False),
    ],
)
def test_bindings_are_used_for_small_batches_of_numbers_with_known_shapes(of, expected):
    assert are_worth_it(of) == expected
