"""Files that contradict themselves are refused when they are loaded, not at some request."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from stoker.backends.ipu.popef.model import Model, ModelBuilder
from stoker.backends.ipu.popef.program_codec import encode_program
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import Metadata, TensorInfo
from stoker.backends.ipu.popef.writer import FileWriter
from stoker.backends.ipu.program import Binding, MemoryAccount, StaticProgram
from stoker.backends.ipu.runtime import ApplicationRuntimeError, Device, DeviceManager, Executable, Session, SimulatedSystem
from tests.fakes.ipu_programs import doubling, weighted, write_popef

PROGRAM_CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"system": "M1"}, "compiled for system 'M1'; known are Bow, C600, M2000"),
    ({"batches_per_step": 3}, "batches_per_step is 3, the metadata's device_iterations 1"),
    ({"num_ipus": 2}, "num_ipus is 2, the metadata's num_ipus 1"),
    ({"replication_factor": 2}, "replication_factor is 2, the metadata's"),
    (
        {"memory": (MemoryAccount(ipu=1, capacity_bytes=10, by_category={}, total_bytes=21, tile_bytes=(10, 11)),)},
        "Out of memory on tile 1473: 11 bytes; a tile has 10",
    ),
]


def rewritten(path: Path, program: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None) -> Model:
    """The model of `path` with other fields, read again from a file."""
    model = loaded(path)
    changed: StaticProgram = dataclasses.replace(model.program(), **(program or {}))
    stated: Metadata = dataclasses.replace(model.metadata, **(metadata or {}))
    with FileWriter(path) as writer:
        with writer.create_executable(stated.executable) as blob:
            blob.write(encode_program(changed))
        writer.write(stated)
    return loaded(path)


def loaded(path: Path) -> Model:
    reader = Reader()
    reader.parse_file(path)
    return ModelBuilder(reader).create_model()


@pytest.mark.parametrize(("change", "reason"), PROGRAM_CHANGES)
def test_program_that_contradicts_its_metadata_or_system_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = write_popef(tmp_path / "m.popef", doubling())
    with pytest.raises(ApplicationRuntimeError, match=f"executable 'model'.*{reason}"):
        Executable(rewritten(path, program=change))


def test_anchor_larger_than_the_device_is_refused_before_allocation(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling())
    first, *others = loaded(path).metadata.anchors
    huge = dataclasses.replace(first, tensor_info=TensorInfo((1 << 40, 1 << 20), first.tensor_info.data_type))
    with pytest.raises(
        ApplicationRuntimeError, match=r"anchor 'x' of shape \[.*\] takes 4611686018427387904 bytes; its 1 IPU\(s\) have 9405"
    ):
        Executable(rewritten(path, metadata={"anchors": (huge, *others)}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": ()}, "has the inputs x, w; its anchors feed w"),
        ({"outputs": (Binding("y", "z"),)}, "has no output 'z', which anchor 'y' shows"),
    ],
)
def test_graph_without_the_values_of_its_anchors_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = write_popef(tmp_path / "m.popef", weighted())
    (graph,) = loaded(path).program().graphs
    model = rewritten(path, program={"graphs": (dataclasses.replace(graph, **change),)})
    with pytest.raises(ApplicationRuntimeError, match=f"sub-graph 'model'.*{reason}"):
        Session(model, device_manager=DeviceManager(SimulatedSystem(1)))


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (doubling((3, 3)), r"'x' is float32\[3, 3\], its anchor 'x' float32\[2, 3\]"),
        (dataclasses.replace(doubling(), dtypes={"x": np.float16, "y": np.float16}), r"'x' is float16\[2, 3\], its anchor 'x' float32"),
    ],
)
def test_graph_with_values_of_another_shape_or_type_is_refused(tmp_path: Path, part: Any, reason: str) -> None:
    path = write_popef(tmp_path / "m.popef", doubling())
    (graph,) = loaded(path).program().graphs
    model = rewritten(path, program={"graphs": (dataclasses.replace(graph, onnx=part.onnx()),)})
    with pytest.raises(ApplicationRuntimeError, match=reason):
        Session(model, device_manager=DeviceManager(SimulatedSystem(1)))


def test_graph_reads_no_file_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2, 3], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="secret.bin")
    part = dataclasses.replace(doubling(), nodes=[helper.make_node("Add", ["x", "w"], ["y"])], initializers=[weight])
    path = write_popef(tmp_path / "m.popef", part)
    with pytest.raises(ApplicationRuntimeError, match="sub-graph 'model': the lowered graph cannot be prepared"):
        Session(path, device_manager=DeviceManager(SimulatedSystem(1)))


def test_failed_launch_releases_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = DeviceManager(SimulatedSystem(1))
    path = write_popef(tmp_path / "m.popef", doubling())

    def refuse(*_: object) -> None:
        raise ApplicationRuntimeError("not today")

    monkeypatch.setattr(Device, "load", refuse)
    with pytest.raises(ApplicationRuntimeError, match="not today") as caught:
        Session(path, device_manager=manager)
    assert caught.tb is not None  # which holds the session
    manager.get_device(1).detach()
