"""`scripts/gpu-check`: the conformance checks and a benchmark of backend `onnxruntime` on a CUDA device."""

import argparse
import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from stoker.backends.api.backend import Arrays, Instance, LoadRequest
from stoker.backends.api.candidate import Accelerator, Candidate, Violation
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.testing.conformance import CHECKS, NotApplicable
from tests.conformance.sample_models import SAMPLES
from tests.fakes.onnx_models import load_request, model, onnx_files, value

NO_DEVICE, FAILED, PASSED = 2, 1, 0
CHANNELS, SIDE, LAYERS = 64, 56, 8
BATCHES = (1, 8, 32)
WARM_RUNS, TIMED_RUNS = 5, 20
#: The largest difference between the outputs of the device and of the CPU, relative to the largest output: TF32 keeps 10 bits.
TOLERANCE = 2e-2


class OnDevice(OnnxRuntimeBackend):
    """Loads every model on one device."""

    def __init__(self, backend: OnnxRuntimeBackend, device_id: int, accelerators: tuple[Accelerator, ...]) -> None:
        self._backend = backend
        self._device_id = device_id
        self._accelerators = accelerators

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return self._backend.inspect(files, model_filename)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        yield from self._backend.check(candidate)

    def load(self, request: LoadRequest) -> Instance:
        return self._backend.load(
            dataclasses.replace(request, kind="KIND_GPU", device_id=self._device_id, gpu_accelerators=self._accelerators)
        )


def main(arguments: Sequence[str] | None = None, backend: OnnxRuntimeBackend | None = None) -> int:
    """Returns the exit code: 0 all is well, 1 a check failed or outputs differ, 2 there is no device to check."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("--device", type=int, default=0, help="the CUDA device (default: 0)")
    parser.add_argument("--tensorrt", action="store_true", help="use the accelerator tensorrt, in FP32")
    parser.add_argument("--no-benchmark", action="store_true", help="only the conformance checks")
    options = parser.parse_args(arguments)
    backend = backend or OnnxRuntimeBackend()
    if reason := backend.why_no_devices():
        print(f"gpu-check: nothing to check: {reason}")
        return NO_DEVICE
    if options.device not in backend.device_ids():
        print(f"gpu-check: there is no device {options.device}; there are {', '.join(map(str, backend.device_ids()))}")
        return NO_DEVICE
    accelerators = (Accelerator("tensorrt", {"precision_mode": "FP32"}),) if options.tensorrt else ()
    tested = OnDevice(backend, options.device, accelerators)
    failed = conformance(tested)
    if not options.no_benchmark:
        failed += benchmark(backend, tested)
    print("gpu-check: " + (f"{failed} failed" if failed else "all passed"))
    return FAILED if failed else PASSED


def conformance(tested: OnDevice) -> int:
    """Runs the checks of `stoker.backends.testing`; returns how many failed."""
    failed = skipped = 0
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(tested, SAMPLES["onnxruntime"], Path(folder))
            except NotApplicable:
                skipped += 1
            except Exception as error:
                failed += 1
                print(f"FAILED  {name}: {type(error).__name__}: {error}")
    print(f"conformance: {len(CHECKS) - failed - skipped} of {len(CHECKS)} checks passed, {failed} failed, {skipped} do not apply")
    return failed


def benchmark(on_cpu: OnnxRuntimeBackend, on_device: OnDevice) -> int:
    """Prints images per second of a convolutional network on the CPU and on the device; returns how many batch sizes differ in outputs."""
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        dims = (CHANNELS, SIDE, SIDE)
        tensors = TensorSpec("x", DataType.FP32, dims), TensorSpec("y", DataType.FP32, dims)
        served = ModelSignature(tensors[:1], tensors[1:], max(BATCHES))
        request = load_request(onnx_files(Path(folder), network()), served)
        with _loaded(on_cpu, dataclasses.replace(request, cpu_threads=0)) as host, _loaded(on_device, request) as device:
            print(f"{'batch':>5} {'CPU /s':>10} {'device /s':>10} {'ratio':>7} {'difference':>11}")
            for rows in BATCHES:
                batch = {"x": np.random.default_rng(rows).random((rows, *dims), np.float32)}
                expected, host_s = timed(host, batch)
                found, device_s = timed(device, batch)
                difference = float(np.abs(found - expected).max() / np.abs(expected).max())
                differ += difference > TOLERANCE
                print(f"{rows:>5} {rows / host_s:>10.1f} {rows / device_s:>10.1f} {host_s / device_s:>7.2f} {difference:>11.1e}")
    return differ


def network() -> onnx.ModelProto:
    """Eight 3x3 convolutions with ReLU, 64 channels of 56x56."""
    random = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for layer in range(LAYERS):
        kernel = (random.standard_normal((CHANNELS, CHANNELS, 3, 3)) / np.sqrt(9 * CHANNELS / 2)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [name, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        name = "y" if layer == LAYERS - 1 else f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [name]))
    shape = ("n", CHANNELS, SIDE, SIDE)
    return model(nodes, [value("x", shape)], [value("y", shape)], weights)


def timed(instance: Instance, batch: Arrays) -> tuple[np.ndarray, float]:
    """The output, and the median seconds of a batch."""
    for _ in range(WARM_RUNS):
        output = instance.execute(batch, ["y"])["y"]
    seconds = []
    for _ in range(TIMED_RUNS):
        begun = time.perf_counter()
        instance.execute(batch, ["y"])
        seconds.append(time.perf_counter() - begun)
    return np.asarray(output), float(np.median(seconds))


@contextlib.contextmanager
def _loaded(backend: OnnxRuntimeBackend, request: LoadRequest) -> Iterator[Instance]:
    with contextlib.closing(backend.load(request)) as instance:
        yield instance
