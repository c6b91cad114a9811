"""Backend openvino computes the same integers as ONNX Runtime in every model that it does not refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.errors import InvalidRequest, ModelLoadError
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx_files.runtime import ORT_ERRORS
from stoker.backends.testing.samples import signature
from tests.fakes import networks
from tests.fakes.integer_graphs import INTEGERS, IntegerGraph, graphs_of
from tests.fakes.onnx_models import onnx_files
from tests.fakes.server_process import REPOSITORY_ROOT
from tests.fakes.transformers import small_bert

ov = pytest.importorskip("openvino", reason="the 'openvino' extra is not installed")

from stoker.backends.openvino.integers import inexact_integers  # noqa: E402 - it imports OpenVINO

CORE = ov.Core()
#: Graphs that must load, whatever else is refused: what ordinary models do with ids, masks, shapes and positions.
SERVED = {
    "Gather", "Equal", "CumSum", "ArgMax", "Slice to the end", "Concat", "Cast FLOAT", "Equal, Not, Cast, CumSum, Mul, Add",
    "Equal, Cast, ReduceSum", "Shape, Gather, Mul, Concat, Reshape", "Add", "Sub", "Mul", "Max", "Min", "Abs",
}  # fmt: skip
#: What is known to differ, so that a list that refuses nothing fails.
REJECTED = {"Div", "Mod", "ReduceSum", "ReduceMax", "Clip", "MatMul", "Relu", "Add, Equal", "Less, Cast, Add", "Add beyond 32 bits"}


def ort_output(graph: IntegerGraph) -> np.ndarray | None:
    """ONNX Runtime's; None where it does not run the graph."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(graph.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(["y"], {"x": graph.x})[0])
    except ORT_ERRORS:
        return None


def openvino_output(model: Any, graph: IntegerGraph, rows: int) -> np.ndarray:
    model.reshape({0: ov.PartialShape([rows, 4])})
    request = CORE.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    request.set_input_tensor(0, ov.Tensor(graph.x))
    request.infer()
    return np.array(request.get_output_tensor(0).data)


@pytest.mark.parametrize("kind", INTEGERS, ids=TensorProto.DataType.Name)
def test_accepted_integer_operators_compute_the_same_integers(kind: int) -> None:
    wrong, compared = [], set()
    for graph in graphs_of(kind):
        expected = ort_output(graph)
        if expected is None:
            continue
        model = CORE.read_model(graph.proto.SerializeToString())
        if inexact_integers(model):
            continue
        compared.add(graph.name)
        for rows in (3, -1):
            found = openvino_output(model, graph, rows)
            if found.shape != expected.shape or not np.array_equal(found, expected):
                wrong.append(f"{graph.name}, rows {rows}: {found.ravel()[:4]}, not {expected.ravel()[:4]}")
    assert not wrong
    assert len(compared) >= 10


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32], ids=TensorProto.DataType.Name)
def test_integer_ids_masks_shapes_and_positions_are_served_and_inexact_ones_refused(kind: int) -> None:
    graphs = {graph.name: graph.proto.SerializeToString() for graph in graphs_of(kind)}
    refused = {name for name, content in graphs.items() if inexact_integers(CORE.read_model(content))}
    assert not refused & SERVED
    assert REJECTED & graphs.keys() <= refused


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul of 8 bits"])
def test_arithmetic_in_8_bits_is_refused_because_it_saturates(operator: str) -> None:
    (graph,) = (graph for graph in graphs_of(TensorProto.UINT8) if graph.name == operator)
    model = CORE.read_model(graph.proto.SerializeToString())
    assert inexact_integers(model)
    saturated = openvino_output(model, graph, 3)
    assert 255 in saturated or 0 in saturated


def request(folder: Path, name: str, **parameters: str) -> LoadRequest:
    (graph,) = (graph for graph in graphs_of(TensorProto.INT64) if graph.name == name)
    served = signature({"x": (DataType.INT64, (4,))}, {"y": (DataType.INT64, (1,) if name == "ReduceSum" else (4,))})
    graph.proto.graph.output[0].CopyFrom(graph.proto.graph.input[0])
    graph.proto.graph.output[0].name = "y"
    graph.proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = served.outputs[0].dims[0]
    files = onnx_files(folder, graph.proto)
    return LoadRequest(model_name="m", version=1, files=files, model_filename="model.onnx", signature=served, parameters=parameters)


def test_refusal_names_the_operator_and_the_alternatives(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"ReduceSum '.*' in i64.*backend onnxruntime serves ONNX files exactly; 'true' serves"):
        BackendRegistry().get("openvino").load(request(tmp_path, "ReduceSum"))


def test_operator_may_accept_inputs_that_single_precision_holds(tmp_path: Path) -> None:
    backend = BackendRegistry().get("openvino")
    instance = backend.load(request(tmp_path, "ReduceSum", inexact_integers="true"))
    assert instance.execute({"x": np.array([[1, 2, 3, 4]])}, ["y"])["y"].tolist() == [[10]]
    with pytest.raises(InvalidRequest, match=r"computed in single precision for this model, -16777216 to 16777216"):
        instance.execute({"x": np.array([[16777217, 0, 0, 0]])}, ["y"])
    assert any("computes integers inexactly, as its inexact_integers allows: ReduceSum" in notice for notice in backend.notices())
    instance.close()


ORDINARY = {
    "bert": lambda: small_bert(2, 8),
    "convolutional": lambda: networks.convolutional().model,
    "transformer": lambda: networks.transformer().model,
    "masked": lambda: networks.masked().model,
    "picture": lambda: networks.picture().model,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_networks_are_served(name: str) -> None:
    assert inexact_integers(CORE.read_model(ORDINARY[name]().SerializeToString())) == []


@pytest.mark.parametrize("name", ["digits", "simple"])
def test_sample_models_of_the_project_are_served(name: str) -> None:
    assert inexact_integers(CORE.read_model(str(REPOSITORY_ROOT / "model_repos" / name / "1" / "model.onnx"))) == []
