"""An idle server releases the memory of the largest batch, in every executor and buffer that grows with batches."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stoker.backends.api.backend import Backend, Instance
from stoker.backends.api.batch import KEPT_BYTES, Buffer
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import signature
from stoker.server.tuning.heap_trim import trim_all
from tests.fakes.onnx_models import load_request, model, onnx_files, value
from tests.fakes.outcomes import outputs_of

MIB = 1 << 20
STATM = Path("/proc/self/statm")
PAGE_BYTES = 4096
#: Elements of 64 MiB.
LARGE = 64 * MIB // 4

needs_linux = pytest.mark.skipif(not STATM.exists(), reason="only Linux says here what a process holds")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * PAGE_BYTES


def chain() -> onnx.ModelProto:
    nodes = [helper.make_node("Sigmoid", ["x"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])]
    return model(nodes, [value("x", ("n", "m"))], [value("y", ("n", "m"))])


def loaded(name: str, folder: Path) -> tuple[Backend, Instance]:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"the package '{name}' is not installed")
    backend = BackendRegistry().get(name)
    served = signature({"x": (DataType.FP32, (-1,))}, {"y": (DataType.FP32, (-1,))})
    return backend, backend.load(load_request(onnx_files(folder, chain()), served))


@needs_linux
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("is_first", [True, False])
def test_idle_time_after_a_large_batch_releases_its_memory(name: str, is_first: bool, tmp_path: Path) -> None:
    backend, instance = loaded(name, tmp_path)
    small = np.ones((1, 4), np.float32)
    if not is_first:
        instance.execute({"x": small}, ["y"])
    assert not backend.has_memory_to_release()
    before = resident_bytes()
    instance.execute({"x": np.ones((1, LARGE), np.float32)}, ["y"])
    instance.execute({"x": small}, ["y"])
    assert backend.has_memory_to_release()
    trim_all([backend])
    assert resident_bytes() - before < 40 * MIB
    assert not backend.has_memory_to_release()
    np.testing.assert_allclose(outputs_of(instance.execute({"x": small}, ["y"]))["y"], 1.7310586, rtol=1e-5)
    instance.close()
    trim_all([backend])


@needs_linux
@pytest.mark.parametrize("input_dims", [(2,), (-1,)])
def test_memory_is_released_for_models_with_value_dependent_sizes(input_dims: tuple[int, ...], tmp_path: Path) -> None:
    node = helper.make_node("ConstantOfShape", ["n"], ["y"])
    proto = model([node], [value("n", [None if size < 0 else size for size in input_dims], TensorProto.INT64)], [value("y", (None, None))])
    served = signature({"n": (DataType.INT64, input_dims)}, {"y": (DataType.FP32, (-1, -1))}, max_batch_size=0)
    backend = BackendRegistry().get("onnxruntime")
    instance = backend.load(load_request(onnx_files(tmp_path, proto), served))
    instance.execute({"n": np.array([1, 64])}, ["y"])
    before = resident_bytes()
    instance.execute({"n": np.array([4, LARGE])}, ["y"])
    trim_all([backend])
    assert resident_bytes() - before < 40 * MIB
    assert instance.execute({"n": np.array([2, 3])}, ["y"])["y"].shape == (2, 3)
    instance.close()


@needs_linux
def test_memory_of_large_outputs_that_were_held_together_is_released(tmp_path: Path) -> None:
    columns = 16 * MIB // 4
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1, columns])
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    proto = model([node], [value("x", ("n", 1))], [value("y", ("n", columns))], [shape])
    served = signature({"x": (DataType.FP32, (1,))}, {"y": (DataType.FP32, (columns,))})
    backend = BackendRegistry().get("onnxruntime")
    instance = backend.load(load_request(onnx_files(tmp_path, proto), served))
    instance.execute({"x": np.ones((1, 1), np.float32)}, ["y"])
    before = resident_bytes()
    held = [outputs_of(instance.execute({"x": np.ones((1, 1), np.float32)}, ["y"]))["y"] for _ in range(8)]
    assert backend.has_memory_to_release()
    trim_all([backend])
    assert all(array[0, -1] == 1 for array in held), "what a client has not read yet stays"
    held.clear()
    instance.execute({"x": np.ones((1, 1), np.float32)}, ["y"])
    trim_all([backend])
    assert resident_bytes() - before < 40 * MIB
    instance.close()


@needs_linux
@pytest.mark.parametrize("first", [(4, (2, 2)), None])
def test_memory_of_a_failed_batch_is_released(first: tuple[int, tuple[int, int]] | None, tmp_path: Path) -> None:
    nodes = [helper.make_node("Sigmoid", ["x"], ["a"]), helper.make_node("Reshape", ["a", "shape"], ["y"])]
    proto = model(nodes, [value("x", ("n",)), value("shape", (2,), TensorProto.INT64)], [value("y", (None, None))])
    served = signature({"x": (DataType.FP32, (-1,)), "shape": (DataType.INT64, (2,))}, {"y": (DataType.FP32, (-1, -1))}, max_batch_size=0)
    backend = BackendRegistry().get("onnxruntime")
    instance = backend.load(load_request(onnx_files(tmp_path, proto), served))
    if first is not None:
        instance.execute({"x": np.ones(first[0], np.float32), "shape": np.array(first[1])}, ["y"])
    before = resident_bytes()
    with pytest.raises(BackendFailed):
        instance.execute({"x": np.ones(LARGE, np.float32), "shape": np.array([3, 3])}, ["y"])
    assert backend.has_memory_to_release()
    trim_all([backend])
    assert resident_bytes() - before < 40 * MIB
    instance.close()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_release_of_memory_runs_no_loop(name: str, tmp_path: Path) -> None:
    """This model computes 10 / x times in a loop: for zeros it never ends."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"the package '{name}' is not installed")
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "step"], ["next"]), helper.make_node("Less", ["next", "ten"], ["goes_on"])],
        "body",
        [value("turn", (), TensorProto.INT64), value("condition", (), TensorProto.BOOL), value("sum", (1,))],
        [value("goes_on", (1,), TensorProto.BOOL), value("next", (1,))],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Reshape", ["largest", "one"], ["step"]),
        helper.make_node("Loop", ["", "yes", "zero"], ["whole"], body=body),
        helper.make_node("Add", ["x", "whole"], ["y"]),
    ]
    constants = [
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
        helper.make_tensor("ten", TensorProto.FLOAT, [1], [10.0]),
    ]
    served = signature({"x": (DataType.FP32, (-1,))}, {"y": (DataType.FP32, (-1,))}, max_batch_size=0)
    backend = BackendRegistry().get(name)
    proto = model(nodes, [value("x", ("n",))], [value("y", ("n",))], constants)
    instance = backend.load(load_request(onnx_files(tmp_path, proto), served))
    instance.execute({"x": np.ones(3 * MIB, np.float32)}, ["y"])
    assert backend.has_memory_to_release()
    trim_all([backend])
    assert not backend.has_memory_to_release()
    instance.close()


def test_large_block_of_variable_size_is_released_and_a_small_one_kept() -> None:
    block = Buffer(TensorSpec("x", DataType.FP32, (-1,)), 4)
    block.gather([np.ones((2, KEPT_BYTES // 8), np.float32)])
    block.release()
    assert block.capacity_bytes == KEPT_BYTES
    block.gather([np.ones((2, KEPT_BYTES // 8 + 1), np.float32)])
    block.release()
    assert block.capacity_bytes == 0
    assert block.gather([np.ones((1, 3), np.float32), np.ones((1, 3), np.float32)]).tolist() == [[1, 1, 1], [1, 1, 1]]


def test_block_of_known_size_is_kept() -> None:
    block = Buffer(TensorSpec("x", DataType.FP32, (KEPT_BYTES // 4,)), 2)
    block.release()
    assert block.capacity_bytes == 2 * KEPT_BYTES


def test_backend_that_fails_to_release_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Backend):
        name = "failing"

        def give_memory_back(self) -> None:
            raise RuntimeError("not now")

    class Willing(Failing):
        calls = 0

        def give_memory_back(self) -> None:
            type(self).calls += 1

    Failing.__abstractmethods__ = Willing.__abstractmethods__ = frozenset()
    trim_all([Failing(), Willing()])  # type: ignore[abstract]
    assert Willing.calls == 1
    assert "backend 'failing' did not give memory back: RuntimeError: not now" in caplog.text
