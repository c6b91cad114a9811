"""Compiles a case for a target as `stoker compile` does, loads the written version as the server does, and runs it once."""

import contextlib
import io
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.batch import BatchItem, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.api.tensor import DataType
from stoker.compiler.cli import CHECK_FAILED, FAILED, USAGE
from stoker.compiler.cli import main as compile_command
from stoker.compiler.target import find_target
from stoker.server.config.complete import choose_backend, complete
from stoker.server.config.pbtxt import parse_pbtxt
from tests.conformance.operators.case import Case, difference, runtime_outputs

_REGISTRY = BackendRegistry()
_MODEL = "m"
#: Part of the refusal of a model whose inputs and outputs have several sizes of dimension 0.
_BATCH_IS_FIRST = "is the batch on the GCU"


class Result(StrEnum):
    """What became of a case."""

    RIGHT = "right"
    REFUSED = "refused"
    #: ONNX Runtime computes the same from the source, and ONNX expects something else; or it fails with the source too.
    RUNTIME = "as ONNX Runtime"
    WRONG = "wrong"
    INTERNAL = "internal error"
    NOT_LOADED = "does not load"


#: Any of these makes a run fail.
DEFECTS = (Result.WRONG, Result.INTERNAL, Result.NOT_LOADED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one case for one target; `reason` is the refusal, the error or the difference."""

    part: str
    case: str
    operator: str
    opset: int
    target: str
    result: Result
    reason: str = ""


def outcome(case: Case, target: str, operators: str = "lowered") -> Outcome:
    """Compiles, loads and runs `case` for `target`, with `--operators` where the target has that option.

    A case that is refused is tried again with its parameters as constants, and in one row where a target takes dimension 0 for the batch.
    """
    options = ("--operators", operators) if "operators" in find_target(target).build_options else ()
    found = _outcome(case, target, options)
    if found.result is Result.REFUSED and case.parameters:
        case = case.with_constants()
        found = _outcome(case, target, options)
    if found.result is Result.REFUSED and _BATCH_IS_FIRST in found.reason:
        found = _outcome(case.in_one_row(), target, options)
    return found


def _outcome(case: Case, target: str, options: Sequence[str]) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="stoker-conformance-"))
    try:
        result, reason = _judged(case, target, folder, *options)
    except Exception as error:
        result, reason = Result.INTERNAL, f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(case.part, case.name, case.operator, case.opset, target, result, " ".join(reason.split()))


def _judged(case: Case, target: str, folder: Path, *options: str) -> tuple[Result, str]:
    folder.mkdir(exist_ok=True)
    code, said = compiled(case, target, folder, *options)
    if code == CHECK_FAILED:
        # The compiler compared with ONNX Runtime on random data. On the data of the case, the result may be right nevertheless.
        result, reason = _judged(case, target, folder / "allowed", *options, "--allow_drift")
        return (Result.REFUSED, said) if result is Result.RIGHT else (result, f"{said}; {reason}")
    if code:
        is_internal = "internal error" in said or code not in (FAILED, USAGE)
        return (Result.INTERNAL if is_internal else Result.REFUSED), said
    try:
        found = served_outputs(folder / "repository" / _MODEL, case.feeds)
    except ServingError as error:
        said = f"{type(error).__name__}: {error}"
        return (Result.NOT_LOADED if _runs(case) else Result.RUNTIME), said
    reason = _difference(case, found)
    if reason:
        with contextlib.suppress(Exception):
            if not _difference(case, found, runtime_outputs(case.model, case.feeds)):
                return Result.RUNTIME, reason
    return (Result.WRONG if reason else Result.RIGHT), reason


def _runs(case: Case) -> bool:
    """Returns whether ONNX Runtime runs the source."""
    try:
        runtime_outputs(case.model, case.feeds)
    except Exception:
        return False
    return True


def _names(case: Case) -> list[str]:
    return [value.name for value in case.model.graph.output]


def _difference(case: Case, found: Mapping[str, NDArray[Any]], wanted: Sequence[NDArray[Any]] | None = None) -> str:
    for name, expected in zip(_names(case), case.expected if wanted is None else wanted, strict=True):
        if name not in found:
            return f"output '{name}' is missing"
        if reason := difference(found[name], expected, is_random=case.is_random):
            return f"output '{name}': {reason}"
    return ""


def compiled(case: Case, target: str, folder: Path, *options: str) -> tuple[int, str]:
    """Runs `stoker compile` in this process, with further `options`; returns its exit code and what it wrote to stderr."""
    path = folder / "source.onnx"
    onnx.save(case.model, path)
    words = ["--target", target, "-i", str(path), "--output_dir", str(folder), "--disable_compilation_progress_bar"]
    words += ["--logging_level", "ERROR", "--model_repository", str(folder / "repository"), "--model_name", _MODEL, *options]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = compile_command(words)
    return code, said.getvalue().replace(str(folder), "").strip()


def served_outputs(model: Path, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Loads version 1 in the folder `model` as the server does, and runs it once on `feeds`.

    Raises:
        ServingError: it cannot be loaded, or does not run.
    """
    version = model / "1"
    files = ModelFiles(
        version, {each.relative_to(version).as_posix(): each.stat().st_size for each in version.rglob("*") if each.is_file()}
    )
    parsed = parse_pbtxt((model / "config.pbtxt").read_text(), source=f"{_MODEL}/config.pbtxt", model_name=_MODEL)
    backend, filename = choose_backend(parsed, files.sizes_bytes.keys(), _REGISTRY)
    config = complete(parsed, backend.inspect(files, filename), backend, filename).config.inner
    request = LoadRequest(
        model_name=_MODEL,
        version=1,
        files=files,
        model_filename=filename,
        signature=config.signature,
        parameters=config.parameters,
        graph_level=config.graph_level,
        instance_name=f"{_MODEL}_0",
    )
    instance = backend.load(request)
    try:
        signature = config.signature
        is_batched = signature.max_batch_size > 0
        inputs = {spec.name: _sent(spec, feeds[spec.name], is_batched=is_batched) for spec in signature.inputs}
        rows = next(iter(inputs.values())).shape[0] if is_batched and inputs else 1
        item = BatchItem(inputs, rows, tuple(spec.name for spec in signature.outputs))
        (done,) = processor_for(instance, signature, SystemClock()).process([item]).outcomes
        if isinstance(done, ServingError):
            raise done
        return {spec.name: _received(spec, done[spec.name], rows if signature.max_batch_size else None) for spec in signature.outputs}
    finally:
        instance.close()


def _sent(spec: TensorSpec, array: NDArray[Any], *, is_batched: bool) -> NDArray[Any]:
    """Returns `array` as a client sends it: in type and shape of the configuration, bfloat16 as its bits."""
    if spec.reshape is not None:
        array = array.reshape((*array.shape[:is_batched], *spec.dims))
    if spec.datatype is DataType.BYTES:
        texts = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel().tolist()]
        return np.array(texts, object).reshape(array.shape)
    if spec.datatype is DataType.BF16:
        return np.ascontiguousarray(array).view(np.uint16)
    return np.ascontiguousarray(array.astype(spec.datatype.numpy)).reshape(array.shape)


def _received(spec: TensorSpec, array: NDArray[Any], rows: int | None) -> NDArray[Any]:
    """Returns a copy of an output in the shape of the model."""
    found = np.array(array)
    if spec.reshape is not None and VARIABLE not in spec.model_dims:
        found = found.reshape(spec.model_dims if rows is None else (rows, *spec.model_dims))
    return found.view(ml_dtypes.bfloat16) if spec.datatype is DataType.BF16 else found
