"""Execution providers: what a configuration selects, what is rejected, and with which remedy."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.candidate import Accelerator, Candidate
from stoker.backends.api.errors import BackendSettingError, ModelLoadError
from stoker.backends.api.model import ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.onnx.cuda_devices import CudaDevices
from stoker.backends.testing.samples import same_in_and_out
from tests.fakes.cuda import CPU_BUILD, SessionMaker, cuda_devices, gpu_backend
from tests.fakes.onnx_models import identity, load_request, onnx_files

GPU = "optimization.execution_accelerators.gpu_execution_accelerator[0]"
NOTHING = ModelFacts(inputs=None, outputs=None)


def request(folder: Path, **changes: Any) -> LoadRequest:
    served = same_in_and_out(DataType.FP32, (2,), 8)
    return dataclasses.replace(load_request(onnx_files(folder, identity()), served), kind="KIND_GPU", **changes)


def violations(
    backend: OnnxRuntimeBackend, *, cpu: bool = False, parameters: dict[str, str] | None = None, **accelerators: Any
) -> list[str]:
    entries = tuple(Accelerator(name, values, GPU) for name, values in accelerators.items())
    candidate = Candidate(
        facts=NOTHING,
        signature=None,
        parameters=parameters or {},
        gpu_accelerators=() if cpu else entries,
        cpu_accelerators=entries if cpu else (),
    )
    return [str(violation) for violation in backend.check(candidate)]


def test_gpu_instance_gets_cuda_on_its_device_with_tritons_parameters(tmp_path: Path) -> None:
    sessions = SessionMaker()
    parameters = {"gpu_mem_limit": "4294967296", "arena_extend_strategy": "1", "cudnn_conv_algo_search": "0"}
    gpu_backend(sessions).load(request(tmp_path, device_id=1, parameters=parameters))
    cuda = {
        "device_id": "1",
        "gpu_mem_limit": "4294967296",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
    }
    assert sessions.asked == [[("CUDAExecutionProvider", cuda), ("CPUExecutionProvider", {})]]


def test_tensorrt_goes_before_cuda_with_onnxruntimes_option_names(tmp_path: Path) -> None:
    sessions = SessionMaker()
    tensorrt = Accelerator("tensorrt", {"precision_mode": "FP16", "max_workspace_size_bytes": "1073741824", "trt_dla_enable": "1"})
    gpu_backend(sessions).load(request(tmp_path, device_id=0, gpu_accelerators=(tensorrt, Accelerator("cuda", {"use_tf32": "0"}))))
    [[first, second, third]] = sessions.asked
    written = {"trt_fp16_enable": "True", "trt_max_workspace_size": "1073741824", "trt_dla_enable": "True"}
    assert first == ("TensorrtExecutionProvider", {"device_id": "0"} | written)
    assert second == ("CUDAExecutionProvider", {"device_id": "0", "use_tf32": "0"})
    assert third[0] == "CPUExecutionProvider"


def test_cpu_instance_of_a_gpu_build_asks_for_no_cuda(tmp_path: Path) -> None:
    sessions = SessionMaker()
    instance = gpu_backend(sessions).load(dataclasses.replace(request(tmp_path), kind="KIND_CPU"))
    assert {name for asked in sessions.asked for name, _ in asked} == {"CPUExecutionProvider"}
    assert instance.only_computes


def test_openvino_accelerates_a_cpu_instance_that_is_then_kept_off_the_event_loop(tmp_path: Path) -> None:
    sessions = SessionMaker(starts=("OpenVINOExecutionProvider",))
    backend = gpu_backend(sessions, providers=("OpenVINOExecutionProvider", "CPUExecutionProvider"))
    openvino = Accelerator("openvino", {"device_type": "CPU", "num_of_threads": "2", "disable_dynamic_shapes": "true"})
    instance = backend.load(dataclasses.replace(request(tmp_path), kind="KIND_CPU", cpu_accelerators=(openvino,)))
    options = {"device_type": "CPU", "num_of_threads": "2", "disable_dynamic_shapes": "True"}
    assert sessions.asked == [[("OpenVINOExecutionProvider", options), ("CPUExecutionProvider", {})]]
    assert not instance.only_computes
    assert instance.bound(1) is None


def test_engine_cache_lies_below_the_operators_folder(tmp_path: Path) -> None:
    sessions, cache = SessionMaker(), tmp_path / "cache"
    cache.mkdir()
    backend = gpu_backend(sessions)
    backend.configure({"cache-dir": str(cache)})
    parameters = {"trt_engine_cache_enable": "1", "trt_timing_cache_path": "timings"}
    backend.load(request(tmp_path, gpu_accelerators=(Accelerator("tensorrt", parameters),)))
    options = sessions.asked[0][0][1]
    assert options["trt_engine_cache_path"] == str(cache)
    assert options["trt_timing_cache_path"] == str(cache / "timings")


def test_cache_folder_must_exist() -> None:
    with pytest.raises(BackendSettingError, match="cache-dir takes an existing folder"):
        gpu_backend().configure({"cache-dir": "/no/such/folder"})


@pytest.mark.parametrize("path", ["/var/cache", "../up", "a/../../up", "x\ny"])
def test_cache_path_outside_the_folder_is_rejected(path: str) -> None:
    [text] = violations(gpu_backend(), tensorrt={"trt_engine_cache_path": path})
    assert text.startswith(f'{GPU}.parameters["trt_engine_cache_path"]: takes a path relative to the cache folder')


def test_cache_without_a_folder_names_the_setting() -> None:
    [text] = violations(gpu_backend(), tensorrt={"trt_engine_cache_enable": "true"})
    assert text.endswith("needs a folder for caches: start the server with --backend-config=onnxruntime,cache-dir=DIR")


def test_gpu_load_on_a_cpu_build_names_the_reason_the_installed_providers_and_the_remedy(tmp_path: Path) -> None:
    backend = OnnxRuntimeBackend(providers=lambda: CPU_BUILD)
    with pytest.raises(ModelLoadError) as caught:
        backend.load(request(tmp_path))
    assert caught.value.message == (
        "instance_group of KIND_GPU: the installed onnxruntime has no CUDAExecutionProvider; it has AzureExecutionProvider, "
        "CPUExecutionProvider: install onnxruntime-gpu in place of onnxruntime (docs/onnx.md, Execution providers)"
    )


def test_missing_providers_of_accelerators_are_rejected_with_the_remedy() -> None:
    backend = OnnxRuntimeBackend(providers=lambda: CPU_BUILD)
    [openvino] = violations(backend, cpu=True, openvino={})
    assert "has no OpenVINOExecutionProvider; it has AzureExecutionProvider, CPUExecutionProvider" in openvino
    assert "or choose backend 'openvino'" in openvino
    [tensorrt] = violations(backend, tensorrt={})
    assert tensorrt.startswith(f"{GPU}.name: 'tensorrt': the installed onnxruntime has no TensorrtExecutionProvider")


def test_every_bad_accelerator_setting_is_found_at_once() -> None:
    found = violations(
        gpu_backend(),
        parameters={"gpu_mem_limit": "much"},
        tensorrt={"precision_mode": "FP8", "trt_dla_enabel": "1", "max_workspace_size_bytes": "-1"},
        auto_mixed_precision={},
    )
    assert [text.split(": ", 1)[0] for text in found] == [
        'parameters["gpu_mem_limit"]',
        f'{GPU}.parameters["precision_mode"]',
        f'{GPU}.parameters["trt_dla_enabel"]',
        f'{GPU}.parameters["max_workspace_size_bytes"]',
        f"{GPU}.name",
    ]
    assert "did you mean trt_dla_enable" in found[2]
    assert found[4].endswith("no accelerator 'auto_mixed_precision' of backend 'onnxruntime'; allowed: cuda, tensorrt")


def test_provider_that_does_not_start_fails_the_load(tmp_path: Path) -> None:
    """onnxruntime itself would run the model on the CPU without a word."""
    with pytest.raises(
        ModelLoadError, match=r"could not start CUDAExecutionProvider; it has only CPUExecutionProvider: the device's libraries"
    ):
        gpu_backend(SessionMaker(starts=())).load(request(tmp_path))


def test_build_without_a_visible_device_says_so(tmp_path: Path) -> None:
    backend = gpu_backend(count=0)
    assert backend.device_ids() == ()
    assert backend.instance_kinds[0] == "KIND_CPU"
    with pytest.raises(ModelLoadError, match="no CUDA device is visible: `nvidia-smi -L`"):
        backend.load(request(tmp_path))


def test_open_kind_means_gpu_where_devices_are() -> None:
    backend = gpu_backend()
    assert (backend.instance_kinds[0], backend.device_ids()) == ("KIND_GPU", (0, 1))


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-0a", "GPU-1a", "GPU-2a"]),
        ("2,0", ["GPU-2a", "GPU-0a"]),
        ("GPU-1", ["GPU-1a"]),
        ("", []),
        ("1,9,0", ["GPU-1a"]),
    ],
)
def test_devices_are_those_that_cuda_sees(visible: str | None, uuids: list[str]) -> None:
    devices = cuda_devices(3, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    assert devices.count == len(uuids)
    assert [reading.uuid for reading in devices.read()] == uuids


def test_figures_are_tritons_and_leave_out_what_a_device_does_not_measure() -> None:
    devices = cuda_devices(2)
    devices.read()
    figures = {(figure.name, figure.labels["gpu_uuid"]): figure.value for figure in devices.figures()}
    assert figures["nv_gpu_utilization", "GPU-0a"] == 0.25
    assert figures["nv_gpu_memory_total_bytes", "GPU-1a"] == 16 << 30
    assert figures["nv_gpu_memory_used_bytes", "GPU-1a"] == 1 << 30
    assert figures["nv_gpu_power_usage", "GPU-0a"] == 70.5
    assert ("nv_gpu_power_usage", "GPU-1a") not in figures
    assert figures["nv_gpu_power_limit", "GPU-0a"] == 300
    assert figures["nv_energy_consumption", "GPU-0a"] == 0


def test_devices_are_counted_without_nvml(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert CudaDevices(load=lambda: None, environment={}, driver=tmp_path).count == 2
    assert CudaDevices(load=lambda: None, environment={"CUDA_VISIBLE_DEVICES": "1"}, driver=tmp_path).count == 1
    assert list(CudaDevices(load=lambda: None, environment={}, driver=tmp_path).figures()) == []
