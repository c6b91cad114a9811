"""`popef` and `model_runtime` in the vendor's spelling."""

import datetime
import io
import shutil
import threading
from pathlib import Path
from typing import Any

import model_runtime
import numpy as np
import onnx
import popef
import pytest
import stoker_compat
from onnx import TensorProto, helper
from poprt.compiler import Compiler
from stoker_compat.renaming import renamed, snake_case


@pytest.fixture(scope="module")
def executable(tmp_path_factory):
    """A file that doubles x, float32 [2]."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", tensors[:1], tensors[1:])
    path = tmp_path_factory.mktemp("popef") / "executable.popef"
    Compiler.compile_and_export(helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), ["y"], path)
    return str(path)


def test_file_is_read_in_camel_case(executable):
    reader = popef.Reader()
    reader.parseFile(executable)
    (metadata,) = reader.metadata()
    assert (metadata.numIpus, metadata.replicationFactor, metadata.isInference) == (1, 1, True)
    anchors = {anchor.name: anchor for anchor in metadata.anchors}
    assert anchors["x"].type is popef.TensorType.INPUT
    assert anchors["x"].tensorInfo.shape == [2]
    assert popef.popefTypeToNumpyDType(anchors["x"].tensorInfo.dataType) == np.float32
    blob = reader.opaqueBlobs()[0]
    assert blob.executable == metadata.executable
    assert blob.getStandaloneDataStream().read() == blob.data()
    model = popef.ModelBuilder(reader).createModel()
    assert isinstance(model, popef.Model)
    assert model.metadata == metadata


def test_file_is_written_in_camel_case():
    stream = io.BytesIO()
    info = popef.TensorDataInfo("w", popef.TensorInfo((2,), popef.DataType.F32))
    with popef.Writer(stream) as writer:
        with writer.createOpaqueBlob("notes", "exe") as blob:
            blob.stream.write(b"text")
        with writer.createTensorData(info, compress=True) as blob:
            blob.stream.write(np.ones(2, np.float32).tobytes())
    stream.seek(0)
    reader = popef.Reader()
    reader.parseStream(stream)
    assert [(each.name, each.data()) for each in reader.opaqueBlobs()] == [("notes", b"text")]
    assert reader.tensors()[0].info == info
    with pytest.raises(popef.PopefError, match="nowhere"):
        reader.parseFile("nowhere.popef")


def test_session_runs_by_queues(executable):
    reader = popef.Reader()
    reader.parseFile(executable)
    model = popef.ModelBuilder(reader).createModel()
    wait = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT, timeout=datetime.timedelta(seconds=2), sleepTime=1
    )
    device = model_runtime.DeviceManager().getDevice(model, wait)
    assert device.ipuVersion == model.metadata.ipuVersion
    config = model_runtime.SessionConfig()
    config.policy = model_runtime.LaunchPolicy.DEFERRED
    config.waitConfig = wait
    session = model_runtime.Session(model, config, device=device)
    chosen = model_runtime.predicate_factory.orBind(
        model_runtime.predicate_factory.predProgramFlowMain(model.metadata), model_runtime.predicate_factory.predProgramNotAssigned()
    )
    starved: list[str] = []

    def note(queue: Any) -> None:
        starved.append(queue.anchor.name)

    queues = session.createQueueManager(numBuffers=2, timeoutCb=note, inPred=chosen, outPred=chosen)
    assert [anchor.name for anchor in session.getUserInputAnchors()] == ["x"]
    session.runLoadPrograms()
    session.runMainPrograms()
    y, done = np.zeros(2, np.float32), threading.Event()
    queues.outputQueue("y").enqueue(y, y.nbytes, lambda error: done.set())
    queues.inputQueue("x").enqueue(np.array([1, 2], np.float32))
    assert done.wait(30)
    assert y.tolist() == [2, 4]
    session.stop()
    session.close()
    device.unloadFromDevice()
    device.detach()


def test_runner_takes_settings_one_by_one(executable):
    config = model_runtime.ModelRunnerConfig()
    config.timeoutNs = datetime.timedelta(seconds=1)
    config.auto_reset = True
    with pytest.raises(AttributeError, match="timeoutMs"):
        config.timeoutMs = 1
    with model_runtime.ModelRunner(executable, config) as runner:
        assert [(each.name, each.sizeInBytes) for each in runner.getExecuteInputs()] == [("x", 8)]
        y = np.zeros(2, np.float32)
        runner.executeAsync(model_runtime.InputMemoryView(x=np.ones(2, np.float32)), model_runtime.OutputMemoryView(y=y)).wait()
    assert y.tolist() == [2, 2]


def test_device_can_be_created_without_an_object():
    with model_runtime.DeviceManager.createIpuModelDevice(numIpus=1, ipuVersion="ipu21", tilesPerIpu=16) as device:
        assert (device.ipuVersion, device.tilesPerIpu) == (21, 16)


@pytest.mark.parametrize(
    ("name", "expected"), [("opaqueBlobs", "opaque_blobs"), ("numIpus", "num_ipus"), ("as_is", "as_is"), ("data", "data")]
)
def test_names_are_translated(name, expected):
    assert snake_case(name) == expected


def test_shims_compare_by_their_wrapped_object():
    first = popef.TensorInfo((1,), popef.DataType.U8)
    assert first == popef.TensorInfo((1,), popef.DataType.U8)
    assert len({first, popef.TensorInfo((1,), popef.DataType.U8)}) == 1
    assert "U8" in repr(first)
    with pytest.raises(AttributeError):
        _ = renamed(dict, "Names").noSuchThing


def test_installed_vendor_package_causes_one_warning(tmp_path, monkeypatch):
    (tmp_path / "poprt").mkdir()
    (tmp_path / "poprt" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(stoker_compat, "_said", set())
    with pytest.warns(RuntimeWarning, match="another 'poprt' is installed"):
        stoker_compat.warn_beside_real("poprt")
    stoker_compat.warn_beside_real("poprt")


SHIMS = ("TopsInference", "adlik_serving", "model_compiler", "model_runtime", "popef", "poprt")


@pytest.mark.parametrize("package", SHIMS)
def test_installed_copy_of_the_shim_causes_no_warning(package, tmp_path, monkeypatch):
    shims = Path(stoker_compat.__file__).parents[1]
    shutil.copytree(shims / package, tmp_path / package)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(stoker_compat, "_said", set())
    stoker_compat.warn_beside_real(package)  # a warning would be an error


def test_vendor_package_behind_an_installed_copy_causes_a_warning(tmp_path, monkeypatch):
    shims = Path(stoker_compat.__file__).parents[1]
    shutil.copytree(shims / "popef", tmp_path / "copy" / "popef")
    (tmp_path / "real" / "popef").mkdir(parents=True)
    (tmp_path / "real" / "popef" / "__init__.py").write_text("parseFile = None")
    monkeypatch.syspath_prepend(tmp_path / "real")
    monkeypatch.syspath_prepend(tmp_path / "copy")
    monkeypatch.setattr(stoker_compat, "_said", set())
    with pytest.warns(RuntimeWarning, match="another 'popef' is installed at .*real"):
        stoker_compat.warn_beside_real("popef")
