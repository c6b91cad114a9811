"""How far a model's outputs on OpenVINO are from ONNX Runtime's, over made-up data: `compare_with_onnxruntime`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from stoker.backends.api.batch import Array
from stoker.backends.api.errors import ServingError
from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx_files.runtime import ORT_ERRORS, public_text
from stoker.backends.openvino.instance import OpenVinoInstance

#: Rows compared where one model takes any, and the size given to dims that vary.
_ROWS = 4
_VARIABLE_SIZE = 8


class Incomparable(Exception):
    """The two cannot be compared; the text says why."""


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """One output.

    Attributes:
        name: Of the output.
        max_abs: The largest difference of an element.
        largest: The largest magnitude that ONNX Runtime gave.
        cosine: Of the angle between both; 1 where nothing differs.
    """

    name: str
    max_abs: float
    largest: float
    cosine: float

    def __str__(self) -> str:
        relative = f" ({self.max_abs / self.largest:.2g} of the largest, {self.largest:.4g})" if self.largest else ""
        return f"output '{self.name}' differs from onnxruntime's by at most {self.max_abs:.3g}{relative}, cosine {self.cosine:.6f}"


def differences(instance: OpenVinoInstance, signature: ModelSignature, path: Path, *, threads: int) -> tuple[OutputDifference, ...]:
    """Runs the ONNX file at `path` on ONNX Runtime, and `instance` with the same data.

    Raises:
        Incomparable: ONNX Runtime or the instance does not run it, or a tensor is bfloat16, which numpy cannot compute with.
    """
    if any(spec.datatype is DataType.BF16 for spec in (*signature.inputs, *signature.outputs)):
        raise Incomparable("a tensor is bfloat16")
    # At each compiled size: kernels are chosen by it, so that one of them may be off where the others are not.
    sizes = instance.batch_sizes or (instance.static_batch_size or min(_ROWS, signature.max_batch_size),)
    rng = np.random.default_rng(0)
    inputs = {spec.name: _drawn(rng, spec, ((max(sizes),) if signature.is_batched else ())) for spec in signature.inputs}
    names = [spec.name for spec in signature.outputs]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        expected = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(names, inputs)
    except ORT_ERRORS as error:
        raise Incomparable(f"onnxruntime does not run it: {public_text(error, path.parent)}") from error
    try:
        found = [instance.execute({name: array[:size] if size else array for name, array in inputs.items()}, names) for size in sizes]
    except ServingError as error:
        raise Incomparable(f"OpenVINO does not run it: {error.message}") from error
    return tuple(
        _compared(name, [(whole[:size] if size else whole, each[name]) for size, each in zip(sizes, found, strict=True)])
        for name, whole in zip(names, expected, strict=True)
    )


def _compared(name: str, runs: Sequence[tuple[Array, Array]]) -> OutputDifference:
    """Over all `runs`, each what ONNX Runtime gave and what was found."""
    for expected, found in runs:
        if expected.shape != found.shape:
            raise Incomparable(f"output '{name}' is {list(found.shape)}, and {list(expected.shape)} on onnxruntime")
    wanted, got = (np.concatenate([run[side].astype(np.float64).ravel() for run in runs]) for side in (0, 1))
    same = (wanted == got) | (np.isnan(wanted) & np.isnan(got))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(wanted - got))
    worst = float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))  # NaN on one side only
    finite = np.isfinite(wanted) & np.isfinite(got)
    wanted, got = wanted[finite], got[finite]
    lengths = float(np.linalg.norm(wanted) * np.linalg.norm(got))
    cosine = 1.0 if same.all() else float(wanted @ got) / lengths if lengths else 0.0
    return OutputDifference(name, worst, float(np.max(np.abs(wanted), initial=0.0)), cosine)


def _drawn(rng: np.random.Generator, spec: TensorSpec, batch: tuple[int, ...]) -> Array:
    """Normal floats; integers of 0 and 1, which are valid as indices and masks."""
    shape = (*batch, *(_VARIABLE_SIZE if size == VARIABLE else size for size in spec.model_dims))
    kind = spec.datatype.numpy
    drawn = rng.standard_normal(shape) if kind.kind == "f" else rng.integers(0, 2, shape)
    return np.asarray(drawn).astype(kind)
