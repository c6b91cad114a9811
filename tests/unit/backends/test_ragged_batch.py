"""Requests whose rows differ in shape in one batch: the model's input, and each request's output."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from stoker.backends.api.batch import BatchItem, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed, ModelLoadError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.ragged import BatchInput, BatchInputKind, BatchOutput
from stoker.backends.api.ragged_batch import RaggedProcessor
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.testing.fake_backend import FakeInstance
from tests.fakes.onnx_models import load_request, model, onnx_files, value
from tests.fakes.outcomes import all_outputs

FP32, INT32 = DataType.FP32, DataType.INT32
#: What Triton's documentation of ragged batching says for requests of 3, 4 and 5 elements.
THREE_REQUESTS = [np.zeros((1, size), np.float32) for size in (3, 4, 5)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [3, 4, 5]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 7, 12]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 7, 12]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 5),
        ("BATCH_ITEM_SHAPE", [[3], [4], [5]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 4, 5]),
    ],
)
@pytest.mark.parametrize("datatype", [INT32, FP32])
def test_each_kind_of_batch_input_is_computed(kind, expected, datatype):
    made = BatchInput(BatchInputKind(kind), "made", datatype, "x").made_from(THREE_REQUESTS)
    assert made.dtype == datatype.numpy
    assert made.tolist() == expected


def test_item_shapes_are_listed_row_by_row():
    arrays = [np.zeros((2, 3, 1)), np.zeros((1, 2, 2))]
    assert BatchInput(BatchInputKind.ITEM_SHAPE, "m", INT32, "x").made_from(arrays).tolist() == [[3, 1], [3, 1], [2, 2]]
    assert BatchInput(BatchInputKind.ITEM_SHAPE_FLATTEN, "m", INT32, "x").made_from(arrays).tolist() == [3, 1, 3, 1, 2, 2]


RAGGED = ModelSignature(
    (TensorSpec("x", FP32, (-1,), is_ragged=True), TensorSpec("k", FP32, (1,))),
    (TensorSpec("doubled", FP32, (-1,)), TensorSpec("k2", FP32, (1,))),
    8,
    batch_inputs=(BatchInput(BatchInputKind.ACCUMULATED_ELEMENT_COUNT, "ends", INT32, "x"),),
    batch_outputs=(BatchOutput("doubled", "x"),),
)


def share(*values: float, rows: int = 1, names=("doubled", "k2")) -> BatchItem:
    x = np.array(values, np.float32).reshape(rows, -1)
    return BatchItem({"x": x, "k": np.full((rows, 1), x[0, 0], np.float32)}, rows, names)


def ragged_instance(compute) -> FakeInstance:
    instance = FakeInstance(RAGGED, compute=compute)
    instance.batch_processor = RaggedProcessor
    return instance


def doubling(inputs, names):
    return {"doubled": inputs["x"] * 2, "k2": inputs["k"] * 2}


def test_model_gets_one_vector_and_each_request_its_own_share():
    instance = ragged_instance(doubling)
    items = [share(1, 2, 3), share(4, names=("doubled",)), share(5, 6, 7, 8, rows=2)]
    result = processor_for(instance, RAGGED, SystemClock()).process(items)
    [call] = instance.calls
    assert call.inputs["x"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert call.inputs["ends"].tolist() == [3, 4, 8]
    assert call.inputs["k"].tolist() == [[1], [4], [5], [5]]
    assert result.executions == [4]
    assert [{name: array.tolist() for name, array in outputs.items()} for outputs in all_outputs(result.outcomes)] == [
        {"doubled": [[2, 4, 6]], "k2": [[2]]},
        {"doubled": [[8]]},
        {"doubled": [[10, 12], [14, 16]], "k2": [[10], [10]]},
    ]


def test_requests_with_different_sets_of_inputs_run_apart():
    instance = ragged_instance(lambda inputs, names: {"doubled": inputs["x"] * 2})
    items = [share(1, 2, names=("doubled",)), BatchItem({"x": np.array([[3]], np.float32)}, 1, ("doubled",))]
    outcomes = all_outputs(processor_for(instance, RAGGED, SystemClock()).process(items).outcomes)
    assert [sorted(call.inputs) for call in instance.calls] == [["ends", "k", "x"], ["ends", "x"]]
    assert [outcome["doubled"].tolist() for outcome in outcomes] == [[[2, 4]], [[6]]]


def test_output_that_cannot_be_split_fails_the_request():
    instance = ragged_instance(lambda inputs, names: {"doubled": inputs["x"][:-1], "k2": inputs["k"]})
    [outcome] = processor_for(instance, RAGGED, SystemClock()).process([share(1, 2)]).outcomes
    assert isinstance(outcome, BackendFailed)
    assert "came with 1 elements, the inputs it is cut by have 2" in outcome.message


def ragged_file():
    """`sums`: for each request the sum of all elements up to its end; `twice`: every element doubled."""
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    zero = helper.make_tensor("zero", TensorProto.INT64, [], [0])
    nodes = [
        helper.make_node("CumSum", ["x", "zero"], ["totals"]),
        helper.make_node("Cast", ["ends"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Sub", ["wide", "one"], ["last"]),
        helper.make_node("Gather", ["totals", "last"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "one"], ["sums"]),
        helper.make_node("Add", ["x", "x"], ["twice"]),
    ]
    return model(
        nodes,
        [value("x", ("elements",)), value("ends", ("requests",), TensorProto.INT32)],
        [value("sums", ("requests", 1)), value("twice", ("elements",))],
        [one, zero],
    )


def served(kind: DataType = INT32, name: str = "ends") -> ModelSignature:
    return ModelSignature(
        (TensorSpec("x", FP32, (-1,), is_ragged=True),),
        (TensorSpec("sums", FP32, (1,)), TensorSpec("twice", FP32, (-1,))),
        8,
        batch_inputs=(BatchInput(BatchInputKind.ACCUMULATED_ELEMENT_COUNT, name, kind, "x"),),
        batch_outputs=(BatchOutput("twice", "x"),),
    )


def test_onnx_runtime_runs_a_ragged_batch(tmp_path):
    instance = OnnxRuntimeBackend().load(load_request(onnx_files(tmp_path, ragged_file()), served()))
    items = [BatchItem({"x": np.array([row], np.float32)}, 1, ("sums", "twice")) for row in ([1, 2, 3], [4], [5, 6])]
    outcomes = all_outputs(processor_for(instance, served(), SystemClock()).process(items).outcomes)
    assert [outcome["sums"].tolist() for outcome in outcomes] == [[[6]], [[10]], [[21]]]
    assert [outcome["twice"].tolist() for outcome in outcomes] == [[[2, 4, 6]], [[8]], [[10, 12]]]


def test_file_of_fixed_batch_size_is_refused_at_load(tmp_path):
    nodes = [helper.make_node("Add", ["x", "x"], ["doubled"]), helper.make_node("Add", ["k", "k"], ["k2"])]
    values = [value("x", ("elements",)), value("k", (8, 1)), value("ends", ("requests",), TensorProto.INT32)]
    file = model(nodes, values, [value("doubled", ("elements",)), value("k2", (8, 1))])
    with pytest.raises(ModelLoadError, match=r"input 'k' has shape \[8, 1\] in the model file, so its batch is fixed to 8; ragged batches"):
        OnnxRuntimeBackend().load(load_request(onnx_files(tmp_path, file), RAGGED))


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (served(FP32), "'ends' is TYPE_FP32 in the configuration and TYPE_INT32"),
        (served(name="nope"), "input 'nope' is not in the model file"),
    ],
)
def test_batch_inputs_must_be_inputs_of_the_file(signature, text, tmp_path):
    with pytest.raises(ModelLoadError, match=text):
        OnnxRuntimeBackend().load(load_request(onnx_files(tmp_path, ragged_file()), signature))
