"""Chooses format and scale of every tensor that is cast to eight bits, by the least loss over samples of what it holds.

For each of the two formats, the scales tried go from the smallest that reaches the largest value seen down to one that clips all but a
sixty-fourth of it: a few outliers may be worth clipping. Ties go to the spec that the options name, then to the larger reach.

How much a rounded tensor differs from the exact one: what calibration minimises, and what reports say. Smaller is better for all losses.
All take arrays of one shape, compute in FP64, and are finite for finite input.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.errors import OptionError
from stoker.compiler.precision.float8 import Float8Format, round_to_float8
from stoker.compiler.precision.representation import FLOAT16_EXPONENTS, Float8Spec
from stoker.compiler.precision.samples import Arrays, observe

Loss = Callable[[NDArray[Any], NDArray[Any]], float]

#: Bins of the histogram of absolute values that `kld` compares, as TensorRT's calibration has them.
_BINS: Final = 2048


def mse(exact: NDArray[Any], rounded: NDArray[Any]) -> float:
    """Mean of the squared differences."""
    difference = _difference(exact, rounded)
    return float(np.mean(difference * difference)) if difference.size else 0.0


def mae(exact: NDArray[Any], rounded: NDArray[Any]) -> float:
    """Mean of the absolute differences."""
    difference = _difference(exact, rounded)
    return float(np.mean(np.abs(difference))) if difference.size else 0.0


def noise_to_signal(exact: NDArray[Any], rounded: NDArray[Any]) -> float:
    """Returns the energy of the differences over the energy of the signal, the inverse of the SNR as a ratio; infinite for a zero signal
    with differences.
    """
    difference = _difference(exact, rounded)
    noise, signal = float(np.sum(difference * difference)), float(np.sum(np.square(exact, dtype=np.float64)))
    if signal == 0:
        return 0.0 if noise == 0 else float("inf")
    return noise / signal


def snr_db(exact: NDArray[Any], rounded: NDArray[Any]) -> float:
    """Returns the signal-to-noise ratio in decibels (larger is better); infinite if there are no differences."""
    ratio = noise_to_signal(exact, rounded)
    if ratio == 0:
        return float("inf")
    return float(-10 * np.log10(ratio))


def cosine_distance(exact: NDArray[Any], rounded: NDArray[Any]) -> float:
    """Returns 1 - cos of the angle between both arrays as vectors: 0 for the same direction; 1 if exactly one of them is zero."""
    first, second = exact.astype(np.float64).reshape(-1), rounded.astype(np.float64).reshape(-1)
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    if 0 in lengths:
        return 0.0 if lengths == (0, 0) else 1.0
    # Of unit vectors, so that the difference of nearly equal ones is not lost to rounding.
    difference = first / lengths[0] - second / lengths[1]
    return float(np.sum(difference * difference) / 2)


def kld(exact: NDArray[Any], rounded: NDArray[Any]) -> float:
    """Kullback-Leibler divergence of what rounding leaves of the distribution of absolute values from that distribution.

    After rounding, the values of one level cannot be distinguished: each level's share is spread evenly over the bins it came from.
    """
    magnitude, levels = np.abs(exact).astype(np.float64).reshape(-1), np.abs(rounded).astype(np.float64).reshape(-1)
    largest = float(np.max(magnitude, initial=0.0))
    if largest == 0:
        return 0.0
    bins = np.minimum((magnitude * (_BINS / largest)).astype(np.int64), _BINS - 1)
    level_of_bin = np.full(_BINS, -1.0)
    level_of_bin[bins] = levels
    counts = np.bincount(bins, minlength=_BINS)
    held = counts > 0
    _, level = np.unique(level_of_bin[held], return_inverse=True)
    share = counts[held] / magnitude.size
    spread = (np.bincount(level, weights=share) / np.bincount(level))[level]
    return float(np.sum(share * np.log(share / spread)))


#: By PopRT's names. `gptq` is no loss of a tensor by itself; it is in `float8_plan.py`.
LOSSES: Mapping[str, Loss] = {"mse": mse, "mae": mae, "snr": noise_to_signal, "kld": kld, "cos_dist": cosine_distance}


def _difference(exact: NDArray[Any], rounded: NDArray[Any]) -> NDArray[np.float64]:
    difference: NDArray[np.float64] = np.subtract(exact, rounded, dtype=np.float64)
    return difference


#: Maximum number of values per tensor; more do not change the choice.
SAMPLED_VALUES: Final = 1 << 16
#: Number of scales that are tried below the one that reaches the largest value.
_CLIPPING_SCALES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChoice:
    """The format and scale that were chosen for one tensor.

    Attributes:
        tensor: Tensor name.
        spec: Format and scale.
        loss: Of the kind minimised; NaN where nothing was observed.
        noise: Energy of the rounding error over the energy of the tensor, whatever was minimised; NaN likewise.
        largest: The largest absolute value seen; NaN likewise.
    """

    tensor: str
    spec: Float8Spec
    loss: float = math.nan
    noise: float = math.nan
    largest: float = math.nan

    def __str__(self) -> str:
        seen = "" if math.isnan(self.loss) else f", largest {self.largest:.4g}, loss {self.loss:.4g}, noise {self.noise:.3g}"
        return f"'{self.tensor}' as {self.spec}{seen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """The choice for one Conv, MatMul or Gemm.

    Attributes:
        node, op_type: Which.
        activation: Choice for input 0; None if only the weight is in 8 bits.
        weight: Choice for input 1.
        method: How the weight is rounded: `nearest` or `gptq`.
        is_kept: Whether it keeps its type after all, because its loss is among the worst, or for `reason`.
        reason: Why 8 bits cannot represent the layer; empty if they can.
    """

    node: str
    op_type: str
    activation: TensorChoice | None
    weight: TensorChoice
    method: str = "nearest"
    is_kept: bool = False
    reason: str = ""

    @property
    def noise(self) -> float:
        """Noise of its inputs together, by which layers are ranked; the losses of two layers do not compare."""
        return self.weight.noise + (0.0 if self.activation is None else self.activation.noise)

    def __str__(self) -> str:
        parts = [f"weight {self.weight}"] if self.activation is None else [f"input {self.activation}", f"weight {self.weight}"]
        verdict = f"keeps its type{f': {self.reason}' if self.reason else ''}" if self.is_kept else f"fp8 ({self.method})"
        return f"node '{self.node}' ({self.op_type}): {verdict}; {'; '.join(parts)}"


def loss_of(name: str) -> Loss:
    """Returns the loss function called `name`.

    Raises:
        OptionError: there is none.
    """
    if name not in LOSSES:
        raise OptionError(f"calibration loss '{name}' is not known; expected one of {', '.join([*LOSSES, 'gptq'])}")
    return LOSSES[name]


@dataclass(slots=True)
class Reservoir:
    """Some of the finite values of one tensor over several batches, evenly spaced, and always the largest of each.

    Attributes:
        batches: Number of batches that will be added.
        parts: The values taken from each batch.
        not_finite: Values that were NaN or infinite.
    """

    batches: int
    parts: list[NDArray[np.float32]] = field(default_factory=list)
    not_finite: int = 0

    def add(self, array: NDArray[Any]) -> None:
        """Takes evenly spaced finite values of one batch, and the largest."""
        flat = array.reshape(-1)
        finite = np.isfinite(flat)
        self.not_finite += int(flat.size - np.count_nonzero(finite))
        flat = flat[finite]
        share = max(1, SAMPLED_VALUES // max(1, self.batches))
        taken = flat[:: max(1, -(-flat.size // share))].astype(np.float32)
        if flat.size:
            taken = np.append(taken, np.float32(flat[np.argmax(np.abs(flat))]))
        self.parts.append(taken)

    def values(self) -> NDArray[np.float32]:
        """Returns all values that were taken."""
        return np.concatenate(self.parts) if self.parts else np.zeros(0, np.float32)


def sample_values(model: ir.Model, values: Sequence[ir.Value], batches: Sequence[Arrays]) -> dict[str, Reservoir]:
    """Returns samples of `values` over `batches`, by name.

    Raises:
        CompileError: the model cannot be run.
    """
    reservoirs = {str(value.name): Reservoir(len(batches)) for value in values}
    for observed in observe(model, values, batches):
        for name, array in observed.items():
            reservoirs[name].add(array)
    return reservoirs


def choose_spec(tensor: str, values: NDArray[Any], start: Float8Spec, loss: Loss, *, data_type: ir.DataType) -> TensorChoice:
    """Returns the format and scale with the lowest `loss` over `values`; `start` if nothing is better, or if all values are zero."""
    largest = float(np.max(np.abs(values), initial=0.0))
    best = rate_spec(tensor, values, start, loss)
    if largest == 0:
        return best
    for spec in _candidates(largest, data_type):
        rated = rate_spec(tensor, values, spec, loss)
        if rated.loss < best.loss:
            best = rated
    return best


def rate_spec(tensor: str, values: NDArray[Any], spec: Float8Spec, loss: Loss) -> TensorChoice:
    """Returns the error that `spec` causes over `values`."""
    rounded = round_to_float8(values, spec.float8_format, spec.scale)
    largest = float(np.max(np.abs(values), initial=0.0))
    return TensorChoice(tensor=tensor, spec=spec, loss=loss(values, rounded), noise=noise_to_signal(values, rounded), largest=largest)


def thinned(array: NDArray[Any]) -> NDArray[np.float32]:
    """Returns enough values of `array` to choose its spec, always including the largest."""
    reservoir = Reservoir(1)
    reservoir.add(array)
    return reservoir.values()


def worst_layers(choices: Sequence[LayerChoice], count: int) -> set[int]:
    """Returns the positions of the `count` layers with the most noise; layers without observations are never included."""
    known = [index for index, each in enumerate(choices) if not math.isnan(each.noise)]
    return set(sorted(known, key=lambda index: -choices[index].noise)[:count])


def write_log(path: str | Path, choices: Sequence[LayerChoice], facts: Mapping[str, object]) -> None:
    """Writes `quantize.log`: one line per fact, then one line per layer."""
    lines = [*(f"{name}: {value}" for name, value in facts.items()), *map(str, choices)]
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _candidates(largest: float, data_type: ir.DataType) -> list[Float8Spec]:
    exponents = FLOAT16_EXPONENTS if data_type == ir.DataType.FLOAT16 else range(-32, 32)
    found = []
    for float8_format in Float8Format:
        reaching = math.ceil(math.log2(largest / float8_format.max))
        highest = min(max(reaching, exponents[0]), exponents[-1])
        lowest = max(highest - _CLIPPING_SCALES, exponents[0])
        found += [Float8Spec(float8_format, scale) for scale in range(highest, lowest - 1, -1)]
    return found
