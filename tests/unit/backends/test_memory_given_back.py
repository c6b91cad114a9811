"""Memory of the largest batch is given back at a rest, by every executor and buffer that grows with batches."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from backends.api.backend import Backend, Instance
from backends.api.batch import KEPT_BYTES, Buffer
from backends.api.model import TensorSpec
from backends.api.registry import BackendRegistry
from backends.api.tensor import DataType
from server.core.freed_memory import give_back_all
from tests.fakes.onnx_models import load_request, model, onnx_files, signature, value

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
def test_a_rest_after_a_large_batch_gives_its_memory_back(name: str, is_first: bool, tmp_path: Path) -> None:
    backend, instance = loaded(name, tmp_path)
    small = np.ones((1, 4), np.float32)
    if not is_first:
        instance.execute({"x": small}, ["y"])
    assert not backend.owes_memory()
    before = resident_bytes()
    instance.execute({"x": np.ones((1, LARGE), np.float32)}, ["y"])
    instance.execute({"x": small}, ["y"])
    assert backend.owes_memory()
    give_back_all([backend])
    assert resident_bytes() - before < 40 * MIB
    assert not backend.owes_memory()
    np.testing.assert_allclose(instance.execute({"x": small}, ["y"])["y"], 1.7310586, rtol=1e-5)
    instance.close()
    give_back_all([backend])


def test_a_large_block_of_variable_size_is_not_kept_and_a_small_one_is() -> None:
    block = Buffer(TensorSpec("x", DataType.FP32, (-1,)), 4)
    block.gather([np.ones((2, KEPT_BYTES // 8), np.float32)])
    block.release()
    assert block.capacity_bytes == KEPT_BYTES
    block.gather([np.ones((2, KEPT_BYTES // 8 + 1), np.float32)])
    block.release()
    assert block.capacity_bytes == 0
    assert block.gather([np.ones((1, 3), np.float32), np.ones((1, 3), np.float32)]).tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_block_of_known_size_is_kept() -> None:
    block = Buffer(TensorSpec("x", DataType.FP32, (KEPT_BYTES // 4,)), 2)
    block.release()
    assert block.capacity_bytes == 2 * KEPT_BYTES


def test_a_backend_that_fails_to_give_back_does_not_keep_the_others_from_it(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Backend):
        name = "failing"

        def give_memory_back(self) -> None:
            raise RuntimeError("not now")

    class Willing(Failing):
        calls = 0

        def give_memory_back(self) -> None:
            type(self).calls += 1

    Failing.__abstractmethods__ = Willing.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    give_back_all([Failing(), Willing()])  # type: ignore[abstract]
    assert Willing.calls == 1
    assert "backend 'failing' did not give memory back: RuntimeError: not now" in caplog.text
