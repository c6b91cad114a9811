"""ONNX models that may run on the event loop: those whose work follows from the shapes of their inputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.onnx_files.work import operator_of_open_work
from stoker.backends.testing.samples import same_in_and_out, signature, version_files
from tests.fakes.onnx_models import identity, load_request, model, onnx_files, value

INT64 = TensorProto.INT64
ONES = numpy_helper.from_array(np.ones(1, np.int64), "fixed")


def branch(name: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Constant", [], [name], value_float=1.0)], "b", [], [value(name, ())])


def body() -> onnx.GraphProto:
    nodes = [helper.make_node("Identity", ["go"], ["more"]), helper.make_node("Sin", ["was"], ["is"])]
    inputs = [value("i", (), INT64), value("go", (), TensorProto.BOOL), value("was", (1,))]
    return helper.make_graph(nodes, "body", inputs, [value("more", (), TensorProto.BOOL), value("is", (1,))])


def looping() -> onnx.ModelProto:
    nodes = [helper.make_node("Squeeze", ["n"], ["count"]), helper.make_node("Loop", ["count", "", "x"], ["y"], body=body())]
    return model(nodes, [value("n", (1,), INT64), value("x", (1,))], [value("y", (1,))])


def choosing() -> onnx.ModelProto:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    return model([node], [value("c", (), TensorProto.BOOL)], [value("y", ())])


def tiling(counts: str, *, before: tuple[onnx.NodeProto, ...] = ()) -> onnx.ModelProto:
    nodes = [*before, helper.make_node("Tile", ["x", counts], ["y"])]
    return model(nodes, [value("x", (1,)), value("n", (1,), INT64)], [value("y", (None,))], [ONES])


def in_a_function() -> onnx.ModelProto:
    inner = helper.make_node("Expand", ["a", "size"], ["b"])
    function = helper.make_function("own", "Grow", ["a", "size"], ["b"], [inner], [helper.make_opsetid("", 21)])
    made = model(
        [helper.make_node("Grow", ["x", "n"], ["y"], domain="own")], [value("x", (1,)), value("n", (1,), INT64)], [value("y", (None,))]
    )
    made.functions.append(function)
    return made


def cropping() -> onnx.ModelProto:
    """ONNX Runtime's own operator, which makes pictures of the size that it is given."""
    node = helper.make_node("CropAndResize", ["x", "boxes", "pictures", "size"], ["y"], domain="com.microsoft")
    pictures, size = value("pictures", (1,), TensorProto.INT32), value("size", (2,), TensorProto.INT32)
    return model([node], [value("x", (1, 1, 4, 4)), value("boxes", (1, 4)), pictures, size], [value("y", (None,) * 4)])


@pytest.mark.parametrize(
    ("proto", "operator"),
    [
        (looping(), "Loop"),
        (choosing(), "If"),
        (tiling("n"), "Tile"),
        (tiling("m", before=(helper.make_node("Abs", ["n"], ["m"]),)), "Tile"),
        (in_a_function(), "Expand"),
        (cropping(), "CropAndResize"),
        (tiling("fixed"), None),
        (tiling("c", before=(helper.make_node("Constant", [], ["c"], value_ints=[2]),)), None),
        (model([helper.make_node("Resize", ["x", "", "", "fixed"], ["y"])], [value("x", (1,))], [value("y", (None,))], [ONES]), None),
        (model([helper.make_node("Relu", ["x"], ["y"])], [value("x", (1,))], [value("y", (1,))]), None),
    ],
)
def test_operator_with_value_dependent_work_is_found(tmp_path: Path, proto: onnx.ModelProto, operator: str | None) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    assert operator_of_open_work(path) == operator


def test_model_with_unbounded_work_never_runs_on_the_loop(tmp_path: Path) -> None:
    served = signature({"n": (DataType.INT64, (1,)), "x": (DataType.FP32, (1,))}, {"y": (DataType.FP32, (1,))}, 0)
    assert not OnnxRuntimeBackend().load(load_request(onnx_files(tmp_path, looping()), served)).only_computes


@pytest.mark.parametrize(("datatype", "expected"), [(DataType.FP32, True), (DataType.BYTES, False)])
def test_strings_of_any_length_prevent_inline_execution(tmp_path: Path, datatype: DataType, expected: bool) -> None:
    request = load_request(onnx_files(tmp_path, identity(datatype)), same_in_and_out(datatype))
    assert OnnxRuntimeBackend().load(request).only_computes is expected


def test_model_with_an_invalid_utf_8_name_is_served_but_never_on_the_loop(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["middle"]), helper.make_node("Identity", ["middle"], ["y"])]
    proto = model(nodes, [value("x", ("n", 2))], [value("y", ("n", 2))]).SerializeToString().replace(b"middle", b"\xfbiddle")
    files = version_files(tmp_path, {"model.onnx": proto})
    instance = OnnxRuntimeBackend().load(load_request(files, same_in_and_out()))
    assert instance.execute({"x": np.ones((1, 2), np.float32)}, ["y"])["y"].tolist() == [[2, 2]]
    assert not instance.only_computes
