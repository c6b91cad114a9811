"""Reading executables: files, streams, several models, other builds."""

import io
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.popef.program_codec import package_hash
from stoker.backends.ipu.popef.schema import TensorType
from stoker.backends.ipu.runtime import ApplicationRuntimeError, Executable, PackageHashMismatch, PopefError, Session, SessionConfig
from tests.fakes.ipu_programs import adding, doubling, write_popef


def test_executable_is_read_from_a_path_a_stream_or_a_model(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling())
    by_path = Executable(path)
    for source in (str(path), [path], io.BytesIO(path.read_bytes()), by_path.model):
        executable = Executable(source)
        assert executable.program == by_path.program
        assert executable.name == "model"


def test_one_of_several_models_is_selected_by_name(tmp_path: Path) -> None:
    paths = [write_popef(tmp_path / f"{name}.popef", doubling(), name=name) for name in ("one", "two")]

    assert Executable(paths, name="two").name == "two"
    with pytest.raises(PopefError, match="several models"):
        Executable(paths)


def test_another_build_is_refused_with_both_hashes(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling(), hash_text="0123abcd")
    with pytest.raises(PackageHashMismatch, match=f"0123abcd.*{package_hash()}"):
        Executable(path)
    with pytest.raises(PackageHashMismatch, match="0123abcd"):
        Session(path)

    assert Executable(path, check_package_hash=False).program.package_hash == "0123abcd"
    Session(path, SessionConfig(check_package_hash=False)).close()


def test_index_of_a_fused_program_is_the_input_of_no_graph(tmp_path: Path) -> None:
    fused = Executable(write_popef(tmp_path / "f.popef", adding(), doubling()))
    assert fused.index_anchor is not None
    assert fused.index_anchor.name == "index"
    assert fused.index_anchor.tensor_info.data_type.numpy == np.uint8

    assert Executable(write_popef(tmp_path / "m.popef", doubling())).index_anchor is None


def test_anchor_is_found_by_name_and_direction(tmp_path: Path) -> None:
    executable = Executable(write_popef(tmp_path / "m.popef", doubling()))

    assert executable.anchor("x", TensorType.INPUT).tensor_info.shape == (2, 3)
    with pytest.raises(ApplicationRuntimeError, match="'model' has no output 'x'; it has y"):
        executable.anchor("x", TensorType.OUTPUT)


def test_damaged_file_is_a_file_error(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling())
    path.write_bytes(path.read_bytes()[:-10])

    with pytest.raises(PopefError, match=r"m.popef"):
        Executable(path)


def test_bytes_are_not_treated_as_a_list_of_files(tmp_path: Path) -> None:
    data = write_popef(tmp_path / "m.popef", doubling()).read_bytes()
    with pytest.raises(ApplicationRuntimeError, match="put it into io"):
        Executable(data)  # type: ignore[arg-type]
