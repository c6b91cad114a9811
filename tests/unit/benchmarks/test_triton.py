"""What Triton needs is looked for, and its backend is compiled once; a missing part is a reason, not an error."""

from pathlib import Path

import pytest

from benchmarks.fronts import main
from benchmarks.triton import TritonMissing, triton_contender

#: Writes a line to `calls` beside itself, and makes the file of its last argument.
COMPILER = """#!/bin/sh
echo called >> "$(dirname "$0")/calls"
for word in "$@"; do last=$word; done
touch "$last"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An unpacked wheel, whose files have no mode for execution."""
    binary = tmp_path / "wheel" / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o644)
    return tmp_path / "wheel"


@pytest.fixture
def include(tmp_path: Path) -> Path:
    include = tmp_path / "include"
    include.mkdir()
    (include / "onnxruntime_c_api.h").write_text("#define ORT_API_VERSION 1\n")
    return include


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = tmp_path / "compiler" / "c++"
    compiler.parent.mkdir()
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return compiler


def calls(compiler: Path) -> int:
    return len((compiler.parent / "calls").read_text().splitlines())


def test_backend_is_compiled_once_for_the_same_sources_and_headers(folder: Path, include: Path, compiler: Path, tmp_path: Path):
    found = [triton_contender(folder, include, tmp_path / "cache") for _ in range(2)]
    (backends,) = {word.partition("=")[2] for each in found for word in each.words if word.startswith("--backend-directory=")}
    assert (Path(backends) / "onnxruntime" / "libtriton_onnxruntime.so").exists()
    assert calls(compiler) == 1
    (include / "onnxruntime_c_api.h").write_text("#define ORT_API_VERSION 2\n")
    triton_contender(folder, include, tmp_path / "cache")
    assert calls(compiler) == 2


def test_binary_of_a_wheel_becomes_executable(folder: Path, include: Path, compiler: Path, tmp_path: Path):
    binary = Path(triton_contender(folder, include, tmp_path / "cache").words[0])
    assert binary.stat().st_mode & 0o111


def test_failure_of_the_compiler_is_the_reason(folder: Path, include: Path, compiler: Path, tmp_path: Path):
    compiler.write_text("#!/bin/sh\necho 'backend.cc:1: no such type' >&2\nexit 1\n")
    with pytest.raises(TritonMissing, match=r"does not compile: backend\.cc:1: no such type"):
        triton_contender(folder, include, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_missing_parts_are_named(folder: Path, include: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TritonMissing, match="no Triton: give its folder by --triton or TRITON_FOLDER"):
        triton_contender(None, include)
    with pytest.raises(TritonMissing, match="has none of pytriton/tritonserver/bin/tritonserver"):
        triton_contender(tmp_path, include)
    with pytest.raises(TritonMissing, match=r"ONNXRUNTIME_INCLUDE gives no folder with onnxruntime_c_api\.h"):
        triton_contender(folder, None)
    with pytest.raises(TritonMissing, match=r"is no folder with onnxruntime_c_api\.h"):
        triton_contender(folder, tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TritonMissing, match=r"no C\+\+ compiler"):
        triton_contender(folder, include)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(TritonMissing, match=r"no libonnxruntime\.so"):
        triton_contender(folder, include)


def test_peers_mode_is_skipped_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["--peers", f"--triton={tmp_path}"])
    assert f"skipped: {tmp_path} has none of" in capsys.readouterr().out.replace("\n", " ")
