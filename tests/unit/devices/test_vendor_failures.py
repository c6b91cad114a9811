"""Failures of the vendors' libraries, as clients and metrics see them."""

import datetime
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from stoker.backends.api.backend import Instance
from stoker.backends.api.errors import BackendFailed, ModelLoadError, Unavailable
from stoker.backends.api.tensor import DataType
from stoker.backends.devices.runtime import DeviceBackend
from stoker.backends.gcu.backend import TopsInferenceBackend
from stoker.backends.gcu.status import Status
from stoker.backends.gcu.vendor.failure import VendorCallFailed
from stoker.backends.gcu.vendor.failure import called as called_tops
from stoker.backends.ipu.backend import PoplarBackend
from stoker.backends.testing.samples import Sample, same_in_and_out
from tests.fakes import fake_ipu_runtime, fake_tops_inference
from tests.fakes.vendor_samples import exec_file, graph_of, popef_file
from tests.fakes.vendor_stubs import InstalledPackage

SERVED = same_in_and_out(DataType.FP32, (2,), 4)
DOUBLED = graph_of({"y": ("Add", ["x", "x"])}, TensorProto.FLOAT, (2, 2))
X = np.arange(6, dtype=np.float32).reshape(3, 2)
Load = Callable[..., tuple[DeviceBackend, Instance]]


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fake_tops_inference.FAULTS.clear()
    fake_ipu_runtime.FAULTS.clear()
    fake_ipu_runtime.CONFIGS.clear()
    fake_tops_inference.RELEASED.clear()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    instances: list[Instance] = []

    def make(device: str, content: bytes | None = None, *, module=fake_ipu_runtime, **parameters: str) -> tuple[DeviceBackend, Instance]:
        if device == "gcu":
            backend: DeviceBackend = TopsInferenceBackend()
            backend.package = InstalledPackage(fake_tops_inference, "TopsInference")
            sample = Sample({"model.exec": content or exec_file(DOUBLED)}, "model.exec", SERVED, parameters)
        else:
            backend = PoplarBackend()
            backend.package = InstalledPackage(module, "poprt")
            sample = Sample({"executable.popef": content or popef_file(DOUBLED)}, "executable.popef", SERVED, parameters)
        backend.configure({"runtime": "vendor"})
        instances.append(backend.load(sample.request(tmp_path / str(len(instances)))))
        return backend, instances[-1]

    yield make
    for instance in instances:
        instance.close()


def ran(instance: Instance) -> np.ndarray:
    return np.asarray(instance.execute({"x": X}, ["y"])["y"])


def figure(backend: DeviceBackend, name: str, **labels: str) -> float:
    return sum(each.value for each in backend.figures() if each.name == name and labels.items() <= each.labels.items())


def test_card_runs_more_samples_than_a_compiled_batch(load: Load):
    _, instance = load("gcu")
    np.testing.assert_array_equal(ran(instance), 2 * X)


@pytest.mark.parametrize("status", ["TIF_ENGINE_RUN_FAILED", "TIF_INVALID_VALUE", "TIF_RUNTIME_FP_OVERFLOW"])
def test_run_that_fails_on_a_working_card_is_the_requests_fault(load: Load, status: str):
    backend, instance = load("gcu")
    fake_tops_inference.FAULTS.append(status)
    with pytest.raises(BackendFailed, match=rf"card 0: .*{status}"):
        ran(instance)
    np.testing.assert_array_equal(ran(instance), 2 * X)
    assert figure(backend, "stoker_gcu_faults_total", status=status) == 1
    assert figure(backend, "stoker_gcu_resets_total") == 0


def test_card_that_fails_with_zeros_too_is_unavailable_and_set_up_again(load: Load):
    backend, instance = load("gcu")
    fake_tops_inference.FAULTS.extend(["TIF_ENGINE_RUN_FAILED"] * 2)
    with pytest.raises(Unavailable, match=r"card 0 failed: .*TIF_ENGINE_RUN_FAILED.*; the engine is loaded again before the next batch"):
        ran(instance)
    np.testing.assert_array_equal(ran(instance), 2 * X)
    assert figure(backend, "stoker_gcu_resets_total", card="0", simulated="false") == 1


@pytest.mark.parametrize("status", ["TIF_INTERNAL_ERROR", "TIF_TERMINATED", "TIF_NOT_INITIALIZED"])
def test_status_of_a_broken_device_is_unavailable(load: Load, status: str):
    backend, instance = load("gcu")
    fake_tops_inference.FAULTS.append(status)
    with pytest.raises(Unavailable, match=status):
        ran(instance)
    assert figure(backend, "stoker_gcu_faults_total", status=status) == 1


def test_call_without_a_text_is_a_failure_of_unknown_status(load: Load):
    backend, instance = load("gcu")
    fake_tops_inference.FAULTS.append("False")
    with pytest.raises(BackendFailed, match="run_with_batch reported a failure"):
        ran(instance)
    assert figure(backend, "stoker_gcu_faults_total", status="unknown") == 1


def test_run_that_hangs_is_given_up_after_the_timeout(load: Load):
    _, instance = load("gcu", timeout_ms="50")
    fake_tops_inference.FAULTS.append("hang")
    with pytest.raises(Unavailable, match=r"a batch was given up after 0.05 s \(parameter timeout_ms\)"):
        ran(instance)
    fake_tops_inference.RELEASED.set()
    np.testing.assert_array_equal(ran(instance), 2 * X)


def test_closed_card_keeps_no_memory_and_no_device(load: Load):
    fake_tops_inference.CALLS.clear()
    _, instance = load("gcu", pipeline_depth="3")
    instance.close()
    calls = fake_tops_inference.CALLS
    assert (calls["mem_alloc"], calls["mem_free"], calls["set_device"], calls["release_device"]) == (6, 6, 1, 1)


def test_damaged_engine_is_a_load_error_with_the_vendors_status(load: Load):
    damaged = exec_file(DOUBLED)[:-4] + b"\0\0\0\0"
    with pytest.raises(ModelLoadError, match=r"'model.exec' cannot be loaded to card 0, clusters 0, 1, .*TIF_EXECUTABLE_CRC_VERIFY_FAILED"):
        load("gcu", damaged)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (graph_of({"y": ("Add", ["x", "x"])}, TensorProto.FLOAT, (2, 3)), "TIF_MIS_MATCHED_SHAPE_OR_DIM"),
        (graph_of({"y": ("Add", ["x", "x"])}, TensorProto.INT64, (2, 2)), "TIF_MIS_MATCHED_DATA_TYPE"),
        (
            graph_of({"y": ("Add", ["x", "x"]), "z": ("Neg", ["x"])}, TensorProto.FLOAT, (2, 2)),
            "the engine does not agree with config.pbtxt.*it has 2 outputs, config.pbtxt declares 1",
        ),
    ],
)
def test_engine_that_disagrees_with_the_configuration_is_a_load_error(load: Load, graph: bytes, reason: str):
    with pytest.raises(ModelLoadError, match=reason):
        load("gcu", exec_file(graph))


def test_status_is_read_from_an_exceptions_attribute():
    class LibraryError(Exception):
        status = Status.TIF_ALLOCATE_FAILED

    def mem_alloc(size: int) -> None:
        raise LibraryError(f"no {size} bytes")

    with pytest.raises(VendorCallFailed, match=r"mem_alloc: no 5 bytes \[TIF_ALLOCATE_FAILED\]") as caught:
        called_tops(mem_alloc, 5)
    assert caught.value.status is Status.TIF_ALLOCATE_FAILED


@pytest.mark.parametrize("status", Status)
def test_every_status_of_the_vendor_is_recognised_as_a_result(status: Status):
    if status is Status.TIF_SUCCESS:
        assert called_tops(lambda: status) is status
        return
    with pytest.raises(VendorCallFailed) as caught:
        called_tops(lambda: status)
    assert caught.value.status is status


class ModelRuntime:
    """The attributes of `model_runtime`, which has no `Runner`."""

    ModelRunner = fake_ipu_runtime.ModelRunner
    ModelRunnerConfig = fake_ipu_runtime.ModelRunnerConfig
    InputMemoryView = fake_ipu_runtime.InputMemoryView
    OutputMemoryView = fake_ipu_runtime.OutputMemoryView


@pytest.mark.parametrize("module", [fake_ipu_runtime, ModelRuntime])
def test_ipu_runs_batches_by_either_package(load: Load, module):
    backend, instance = load("ipu", module=module, timeout_ns="2000000", check_package_hash="false")
    np.testing.assert_array_equal(ran(instance), 2 * X)
    [config] = fake_ipu_runtime.CONFIGS
    assert (config.check_package_hash, config.auto_reset) == (False, True)
    assert config.timeout_ns in (2_000_000, datetime.timedelta(milliseconds=2))
    assert figure(backend, "stoker_ipu_batches_total", device="0", simulated="false") == 1


@pytest.mark.parametrize(
    ("fault", "parameters", "error", "text"),
    [
        ("IPU_RESET", {}, Unavailable, "it is reset before the next batch"),
        ("IPU_RESET", {"auto_reset": "false"}, Unavailable, "auto_reset is off: load the model again"),
        ("LINK_RESET", {}, Unavailable, "does not recover from this by itself"),
        ("broken", {}, Unavailable, "IPU device 0 failed: broken"),
        ("application", {}, BackendFailed, "IPU device 0: the program failed"),
    ],
)
def test_failure_of_an_ipu_is_reported_by_its_recovery(load: Load, fault: str, parameters: dict[str, str], error, text: str):
    backend, instance = load("ipu", **parameters)
    fake_ipu_runtime.FAULTS.append(fault)
    with pytest.raises(error, match=text):
        ran(instance)
    np.testing.assert_array_equal(ran(instance), 2 * X)
    kind = {"broken": "unknown"}.get(fault, fault)
    assert figure(backend, "stoker_ipu_faults_total", action=kind) == 1


def test_file_that_the_ipu_runtime_rejects_is_a_load_error(load: Load):
    with pytest.raises(ModelLoadError, match=r"'executable.popef' cannot be loaded to an IPU: the file is no PopEF file"):
        load("ipu", b"something else")


def test_max_batch_size_must_be_a_multiple_of_the_compiled_batch(load: Load):
    with pytest.raises(ModelLoadError, match=r"'x'.*\[3, 2\]"):
        load("ipu", popef_file(graph_of({"y": ("Add", ["x", "x"])}, TensorProto.FLOAT, (3, 2))))


def test_name_map_renames_the_anchors_of_a_vendors_file(tmp_path: Path):
    backend = PoplarBackend()
    backend.package = InstalledPackage(fake_ipu_runtime, "poprt")
    backend.configure({"runtime": "vendor"})
    files = {"executable.popef": popef_file(graph_of({"b": ("Add", ["a", "a"])}, TensorProto.FLOAT, (4, 2)))}
    sample = Sample({**files, "name_map.json": b'{"a": "x", "b": "y"}'}, "executable.popef", SERVED)
    instance = backend.load(sample.request(tmp_path))
    np.testing.assert_array_equal(ran(instance), 2 * X)
    instance.close()
    wrong = replace(sample, files={**files, "name_map.json": b'{"absent": "x"}'})
    with pytest.raises(ModelLoadError, match=r"names anchors absent, which the executable does not have; it has a, b"):
        backend.load(wrong.request(tmp_path / "wrong"))
