"""`TopsInference` as scripts of the vendor's users call it."""

import json

import numpy as np
import onnx
import pytest
import stoker_compat
import TopsInference
from onnx import TensorProto, helper

from tests.fakes.onnx_models import model, value


@pytest.fixture
def path(tmp_path):
    """y = x @ w + 1, for two samples."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [1, 2, 3, 4, 5, 6])
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "one"], ["y"])]
    onnx.save(model(nodes, [value("x", (2, 3))], [value("y", (2, 2))], [weight, one]), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def test_compiler_snippet_of_the_article_runs_unchanged(path, tmp_path):
    with TopsInference.device(0, 0):
        onnx_parser = TopsInference.create_parser(TopsInference.ONNX_MODEL)
        network = onnx_parser.read(path)
        optimizer = TopsInference.create_optimizer()
        engine = optimizer.build(network)
    engine.save_executable(str(tmp_path / "model.exec"))
    with TopsInference.device(0, -1):
        engine = TopsInference.PyEngine()
        engine.load_tops_executable(str(tmp_path / "model.exec"))
        results: list[np.ndarray] = []
        engine.run([{"x": np.ones((2, 3), np.float32)}], results, TopsInference.TIF_ENGINE_RSC_IN_HOST_OUT_HOST)
    assert results[0].tolist() == [[10, 13], [10, 13]]


def test_test_in_the_vendors_style_runs(path):
    """Explicit device memory, names, types and shapes set, a build flag and compile options, as in the vendor's API tests."""
    inputs, outputs = [np.ones((2, 3), np.float32)], np.zeros((2, 2), np.float32)
    device_handle = TopsInference.set_device(0, [0])
    parser = TopsInference.create_parser(TopsInference.ONNX_MODEL)
    parser.set_input_names(["x"])
    parser.set_input_dtypes([TopsInference.DT_FLOAT32])
    parser.set_input_shapes([[2, 3]])
    parser.set_output_dtypes([TopsInference.DT_FLOAT32])
    parser.set_output_names(["y"])
    parser.enable_graph_builder()
    network = parser.read(path)
    optimizer = TopsInference.create_optimizer()
    optimizer.set_compile_options({"hlir_options": "tops-hlir-pipeline{non-dtu=true}"})
    optimizer.set_build_flag(TopsInference.KFP16_MIX)
    engine = optimizer.build(network)
    p_inputs = [TopsInference.mem_alloc(tensor.size * tensor.itemsize) for tensor in inputs]
    for tensor, pointer in zip(inputs, p_inputs, strict=True):
        TopsInference.mem_h2d_copy(tensor, pointer, tensor.size * tensor.itemsize)
    p_outputs = TopsInference.mem_alloc(outputs.size * outputs.itemsize)
    engine.run(p_inputs, [p_outputs], TopsInference.TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE, None)
    TopsInference.mem_d2h_copy(p_outputs, outputs, outputs.size * outputs.itemsize)
    for pointer in (*p_inputs, p_outputs):
        TopsInference.mem_free(pointer)
    TopsInference.release_device(device_handle)
    assert outputs.tolist() == [[10, 13], [10, 13]]


def test_batches_and_streams_of_the_vendors_samples(path):
    with TopsInference.device(0, [0, 1]):
        optimizer = TopsInference.create_optimizer()
        optimizer.set_compile_options(json.dumps({"resource_mode": "2c"}))
        engine = optimizer.build(TopsInference.create_parser(TopsInference.ONNX_MODEL).read(path))
        samples = [np.full((1, 3), number, np.float32) for number in range(5)]
        future = engine.run_with_batch(5, [samples], output_list=None, buffer_type=TopsInference.TIF_ENGINE_RSC_IN_HOST_OUT_HOST)
        assert future.get()[0][:, 0].tolist() == [1, 10, 19, 28, 37]
        streams = [TopsInference.create_stream() for _ in range(12)]
        futures = [engine.runV2([np.full((2, 3), number, np.float32)], py_stream=stream) for number, stream in enumerate(streams)]
        assert [future.get()[0][1, 1] for future in futures] == [1 + 12 * number for number in range(12)]


def test_errors_carry_the_vendors_status(path):
    manager = TopsInference.create_error_manager()
    with pytest.raises(TopsInference.StatusError, match="TIF_MORE_CLUSTER_APPLIED"):
        TopsInference.set_device(0, 7)
    expected = TopsInference.TIFStatus.TIF_MORE_CLUSTER_APPLIED
    assert manager.get_error_status(0) == TopsInference.TIF_MORE_CLUSTER_APPLIED == expected


def test_installed_vendor_sdk_causes_a_warning(tmp_path, monkeypatch):
    (tmp_path / "TopsInference").mkdir()
    (tmp_path / "TopsInference" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(stoker_compat, "_said", set())
    with pytest.warns(RuntimeWarning, match="another 'TopsInference' is installed"):
        stoker_compat.warn_beside_real("TopsInference")
