"""Triton as a contender: the server of the `nvidia-pytriton` wheel, with the ONNX Runtime backend of `triton_onnx_backend`.

    unpacked wheel -----------> tritonserver
    onnxruntime's C headers --> g++ --> libtriton_onnxruntime.so (cached) --dlopen--> libonnxruntime.so of the installed onnxruntime

Both servers thus run the same onnxruntime. docs/benchmarks.md says where the parts come from; none of them is needed otherwise.
"""

import argparse
import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
from pathlib import Path

from benchmarks.servers import Command, free_port

_SOURCES = Path(__file__).resolve().parent / "triton_onnx_backend"
_HEADER = "onnxruntime_c_api.h"
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC")
#: Places of the binary in an unpacked wheel, and in an installation.
_BINARIES = ("pytriton/tritonserver/bin/tritonserver", "bin/tritonserver")
#: Bound on the time of the compiler, seconds.
_COMPILE_S = 300.0


class TritonMissing(RuntimeError):
    """Triton cannot run here; the text states the missing part and how to get it."""


def add_triton_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `triton_contender` takes; environment variables are their defaults."""
    parser.add_argument(
        "--triton", type=Path, metavar="FOLDER", default=_place("TRITON_FOLDER"),
        help="unpacked nvidia-pytriton wheel, or an installation of Triton (default: TRITON_FOLDER)",
    )  # fmt: skip
    parser.add_argument(
        "--onnxruntime-include", type=Path, metavar="FOLDER", default=_place("ONNXRUNTIME_INCLUDE"),
        help=f"folder with {_HEADER} (default: ONNXRUNTIME_INCLUDE)",
    )  # fmt: skip


def triton_contender(folder: Path | None, include: Path | None, cache: Path | None = None) -> Command:
    """Triton, whose backend is compiled if the cache does not have it.

    Args:
        folder: The unpacked wheel or installation.
        include: The folder with onnxruntime's C headers.
        cache: Folder for the compiled backend; None: `stoker-benchmarks` of the user's cache folder.

    Raises:
        TritonMissing: A part is missing, or the backend does not compile.
    """
    binary = _binary(folder)
    backends = _compiled(include, cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker-benchmarks")
    return Command(
        "triton",
        (
            str(binary), "--model-repository={repository}", f"--backend-directory={backends}",
            "--grpc-address=127.0.0.1", "--grpc-port={grpc_port}", "--http-address=127.0.0.1", "--http-port={http_port}",
            f"--metrics-port={free_port()}",
        ),
    )  # fmt: skip


def _place(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


def _binary(folder: Path | None) -> Path:
    if folder is None:
        raise TritonMissing(
            "no Triton: give its folder by --triton or TRITON_FOLDER (`pip download --no-deps nvidia-pytriton` and"
            " `python -m zipfile -e nvidia_pytriton-*.whl FOLDER` make one)"
        )
    for place in _BINARIES:
        binary = folder.resolve() / place
        if binary.exists():
            if not os.access(binary, os.X_OK):  # zipfile does not keep the mode of a file
                binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
            return binary
    raise TritonMissing(f"{folder} has none of {', '.join(_BINARIES)}")


def _compiled(include: Path | None, cache: Path) -> Path:
    """The folder of backends with the compiled one."""
    if include is None or not (include / _HEADER).exists():
        where = "--onnxruntime-include or ONNXRUNTIME_INCLUDE gives no folder" if include is None else f"{include} is no folder"
        raise TritonMissing(
            f"{where} with {_HEADER}: release archives of ONNX Runtime, Debian 13's libonnxruntime-dev and the npm package @qvac/onnx"
            " contain it; the wheel does not"
        )
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        name = os.environ.get("CXX") or "g++"
        raise TritonMissing(f"there is no C++ compiler '{name}' (CXX names another one)")
    library = _onnxruntime_library()
    parts = [*sorted(_SOURCES.iterdir()), *sorted(include.glob("*.h"))]
    key = hashlib.sha256("\0".join((compiler, str(library), *_FLAGS, *(each.read_text("utf-8") for each in parts))).encode()).hexdigest()
    backends = cache / f"triton-{key[:16]}"
    made = backends / "onnxruntime" / "libtriton_onnxruntime.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        command = [compiler, *_FLAGS, f"-I{include}", f'-DONNXRUNTIME_LIBRARY="{library}"', str(_SOURCES / "backend.cc"), "-ldl", "-o"]
        done = subprocess.run([*command, str(unfinished)], capture_output=True, text=True, timeout=_COMPILE_S, check=False)
        if done.returncode:
            raise TritonMissing(f"the backend does not compile: {done.stderr[-2000:]}")
        unfinished.replace(made)
    return backends


def _onnxruntime_library() -> Path:
    spec = importlib.util.find_spec("onnxruntime")
    folders = [] if spec is None or spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    found = sorted(library for folder in folders for library in Path(folder, "capi").glob("libonnxruntime.so*"))
    if not found:
        raise TritonMissing("the installed onnxruntime has no libonnxruntime.so")
    return found[0]
