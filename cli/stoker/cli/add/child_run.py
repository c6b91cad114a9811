"""Runs a conversion in a child process, in this interpreter or another, and reads its result."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.cli.output import CommandFailed

#: Starts the child's module without this distribution on the path of the interpreter, which may be another Python.
_START: Final = (
    "import sys, types; m = types.ModuleType('stoker'); m.__path__ = [sys.argv[1]]; sys.modules['stoker'] = m; "
    "from stoker.cli.add.child.main import main; sys.exit(main())"
)
#: The folder `stoker` that contains the child's package.
_ROOT: Final = Path(__file__).resolve().parents[2]
#: Bytes of the child's log that an error shows.
_LOG_BYTES: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A conversion to run: the fields of the child's `Job`, with the converter and the interpreter."""

    converter: str
    source: Path
    sample: Path | None
    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    row_counts: Sequence[int]
    is_trusted: bool
    python: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs by name, and the source's outputs by position in the converted file."""

    inputs: Mapping[str, Any]
    outputs: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """The result of a conversion; the attributes are those of the child's `Converted`."""

    framework: str
    model: str
    converter: str
    labels: Mapping[int, tuple[str, ...]]
    notes: tuple[str, ...]
    samples: tuple[Sample, ...]


class PackageMissing(Exception):
    """The interpreter of the conversion lacks a package, whose name is the text."""


def run_conversion(conversion: Conversion, folder: Path, results: Path, step: Callable[[str], None]) -> ConversionResult:
    """Converts to `folder`/model.onnx.

    Args:
        conversion: What to convert.
        folder: The folder of the converted files.
        results: A folder for the samples and the log.
        step: Called with each step's name.

    Raises:
        PackageMissing: see there.
        CommandFailed: the model cannot be converted, or the process crashes or takes longer than the time limit.
    """
    request = {
        "converter": conversion.converter,
        "source": str(conversion.source.resolve()),
        "folder": str(folder),
        "results": str(results),
        "sample": None if conversion.sample is None else str(conversion.sample.resolve()),
        "inputs": {name: [dtype, list(dims)] for name, (dtype, dims) in conversion.inputs.items()},
        "row_counts": list(conversion.row_counts),
        "is_trusted": conversion.is_trusted,
    }
    log = results / "log"
    last: dict[str, Any] = {}
    with log.open("wb") as errors:
        try:
            # An argument list without a shell: names are not interpreted.
            child = subprocess.Popen(  # noqa: S603
                [conversion.python, "-c", _START, str(_ROOT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise CommandFailed(f"--python {conversion.python}: {error.strerror}") from error
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(conversion.timeout_s, end)
        timer.start()
        try:
            last = _follow(child, json.dumps(request), step)
            child.wait()
        finally:
            timer.cancel()
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
    if late.is_set():
        raise CommandFailed(f"the conversion takes longer than {conversion.timeout_s:g} s (--timeout)")
    if "missing" in last:
        raise PackageMissing(last["missing"])
    if "converted" not in last:
        raise CommandFailed(last.get("failure") or _crash(child.returncode, log))
    return _result(last["converted"], results)


def _follow(child: "subprocess.Popen[str]", request: str, step: Callable[[str], None]) -> dict[str, Any]:
    """Sends the request and reads the child's lines; returns the last one that is no step."""
    assert child.stdin is not None
    assert child.stdout is not None
    last: dict[str, Any] = {}
    try:
        child.stdin.write(request)
        child.stdin.close()
    except BrokenPipeError:
        return last
    for line in child.stdout:
        try:
            found = json.loads(line)
        except ValueError:
            continue  # the model's own code may write anything
        if isinstance(found, dict) and "step" in found:
            step(str(found["step"]))
        elif isinstance(found, dict):
            last = found
    return last


def _crash(code: int, log: Path) -> str:
    lines = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip().splitlines() or ["no output"]
    return f"the process of the conversion ended with {f'signal {-code}' if code < 0 else f'code {code}'}: {lines[-1]}"


def _result(found: Mapping[str, Any], results: Path) -> ConversionResult:
    samples: list[Sample] = []
    try:
        # The file was written by a process that may have run foreign code: no object is unpickled from it.
        with np.load(results / "samples.npz", allow_pickle=False) as arrays:
            for at in range(int(found["samples"])):
                inputs = {name.partition(".in.")[2]: arrays[name] for name in arrays.files if name.startswith(f"{at}.in.")}
                outputs = {int(name.rpartition(".")[2]): arrays[name] for name in arrays.files if name.startswith(f"{at}.out.")}
                samples.append(Sample(inputs, outputs))
    except (OSError, ValueError) as error:
        raise CommandFailed(f"the samples of the conversion cannot be read: {error}") from error
    return ConversionResult(
        framework=str(found["framework"]),
        model=str(found["model"]),
        converter=str(found["converter"]),
        labels={int(at): tuple(map(str, names)) for at, names in found["labels"].items()},
        notes=tuple(map(str, found["notes"])),
        samples=tuple(samples),
    )


def this_python() -> str:
    """The interpreter of this process."""
    return sys.executable
