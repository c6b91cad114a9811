"""Outputs of `ZipMap` are served as the tensor of probabilities, with the classes as labels."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import FileTensor
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.openvino.backend import OpenVinoBackend
from stoker.backends.testing.samples import signature, version_files
from tests.fakes.classifiers import classifier
from tests.fakes.onnx_models import load_request, onnx_files, value
from tests.fakes.outcomes import outputs_of

BACKEND = OnnxRuntimeBackend()
X = np.array([[2, 1], [0, 3], [-4, -5], [1, 1]], np.float32)


def request(folder: Path, proto: onnx.ModelProto, label: DataType) -> LoadRequest:
    served = signature({"x": (DataType.FP32, (2,))}, {"label": (label, ()), "probabilities": (DataType.FP32, (3,))})
    return load_request(onnx_files(folder, proto), served)


@pytest.mark.parametrize("has_opset", [True, False])
@pytest.mark.parametrize(
    ("labels", "datatype"), [(("cat", "dog", "fish"), DataType.BYTES), ((0, 1, 2), DataType.INT64), ((-7, 300, 2**40), DataType.INT64)]
)
def test_probabilities_and_labels_equal_those_of_the_file(labels, datatype: DataType, has_opset: bool, tmp_path: Path) -> None:
    proto = classifier(labels, has_opset=has_opset)
    instance = BACKEND.load(request(tmp_path, proto, datatype))
    found = instance.execute({"x": X}, ["label", "probabilities"])
    expected_labels, expected_rows = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    np.testing.assert_array_equal(found["probabilities"], [[row[label] for label in labels] for row in expected_rows])
    as_text = [each.decode() if isinstance(each, bytes) else each for each in found["label"].tolist()]
    assert as_text == expected_labels.tolist()
    assert found["probabilities"].dtype == np.float32


def test_probabilities_in_double_precision_are_served_as_fp32(tmp_path: Path) -> None:
    # skl2onnx feeds ZipMap with DOUBLE where the model was trained on float64, which ONNX Runtime does not load as it is.
    proto = classifier((0, 1, 2))
    [zip_map] = [node for node in proto.graph.node if node.op_type == "ZipMap"]
    proto.graph.node.insert(len(proto.graph.node) - 1, helper.make_node("Cast", [zip_map.input[0]], ["wide"], to=TensorProto.DOUBLE))
    expected = [list(row.values()) for row in ort.InferenceSession(classifier((0, 1, 2)).SerializeToString()).run(None, {"x": X})[1]]
    zip_map.input[0] = "wide"
    found = outputs_of(BACKEND.load(request(tmp_path, proto, DataType.INT64)).execute({"x": X}, ["probabilities"]))["probabilities"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_interface_is_a_tensor_with_labels(tmp_path: Path) -> None:
    facts = BACKEND.inspect(onnx_files(tmp_path, classifier()), "model.onnx")
    assert facts.outputs == (
        FileTensor("label", DataType.BYTES, (-1,)),
        FileTensor("probabilities", DataType.FP32, (-1, 3), labels=("cat", "dog", "fish")),
    )
    assert "output 'probabilities' is served as the tensor [rows, classes] that its ZipMap reads" in facts.notes


def test_labels_declared_for_one_row_apply_to_every_row(tmp_path: Path) -> None:
    proto = classifier((0, 1, 2), label_shape=(1,))
    facts = BACKEND.inspect(onnx_files(tmp_path, proto), "model.onnx")
    assert facts.outputs is not None
    assert facts.outputs[0] == FileTensor("label", DataType.INT64, (-1,))
    assert "output 'label' is declared [1]; its classifier gives one element for each row" in facts.notes
    instance = BACKEND.load(request(tmp_path, proto, DataType.INT64))
    for rows in (1, 4, 2):
        assert instance.execute({"x": X[:rows]}, ["label", "probabilities"])["label"].tolist() == [0, 1, 2, 0][:rows]


def test_output_of_one_element_without_a_classifier_is_unchanged(tmp_path: Path) -> None:
    node = helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0)
    graph = helper.make_graph(
        [node, helper.make_node("Reshape", ["total", "one"], ["y"])],
        "g",
        [value("x", (None, 2))],
        [value("y", (1,))],
        [helper.make_tensor("one", TensorProto.INT64, [1], [1])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    facts = BACKEND.inspect(onnx_files(tmp_path, made), "model.onnx")
    assert facts.outputs == (FileTensor("y", DataType.FP32, (1,)),)


def test_map_of_another_kind_is_refused(tmp_path: Path) -> None:
    proto = classifier()
    del proto.graph.node[2].attribute[:]
    with pytest.raises(ModelLoadError, match="output 'probabilities' is sequence; only dense tensors can be served"):
        BACKEND.inspect(onnx_files(tmp_path, proto), "model.onnx")


def test_weights_beside_the_file_are_found(tmp_path: Path) -> None:
    proto = classifier()
    weights = onnx.numpy_helper.from_array(np.ones((1, 2), np.float32), "w")
    proto.graph.initializer.append(weights)
    proto.graph.node[0].input[0] = "scaled"
    proto.graph.node.insert(0, helper.make_node("Mul", ["x", "w"], ["scaled"]))
    onnx.save_model(proto, str(tmp_path / "model.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    served = request(tmp_path / "other", classifier(), DataType.BYTES).signature
    (tmp_path / "version").mkdir()
    instance = BACKEND.load(load_request(version_files(tmp_path / "version", files), served))
    assert instance.execute({"x": X}, ["label"])["label"].tolist() == [b"cat", b"dog", b"fish", b"cat"]


def test_openvino_rejects_a_zip_map_with_the_remedy(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(
        ModelLoadError, match=r"'probabilities' comes from a ZipMap, which OpenVINO does not read\. Backend onnxruntime"
    ) as caught:
        OpenVinoBackend().inspect(onnx_files(tmp_path, classifier()), "model.onnx")
    assert "{'zipmap': False}" in caught.value.message
