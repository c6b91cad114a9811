"""How much a rounded tensor differs from the exact one: what calibration minimises, and what reports say. Smaller is better for all losses.

All take arrays of one shape, compute in FP64, and are finite for finite input.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
    """Energy of the differences over the energy of the signal, the inverse of SNR as a ratio; infinite for noise without signal."""
    difference = _difference(exact, rounded)
    noise, signal = float(np.sum(difference * difference)), float(np.sum(np.square(exact, dtype=np.float64)))
    if signal == 0:
        return 0.0 if noise == 0 else float("inf")
    return noise / signal


def snr_db(exact: NDArray[Any], rounded: NDArray[Any]) -> float:
    """Signal to noise in decibels (larger is better); infinite where there is no noise."""
    ratio = noise_to_signal(exact, rounded)
    if ratio == 0:
        return float("inf")
    return float(-10 * np.log10(ratio))


def cosine_distance(exact: NDArray[Any], rounded: NDArray[Any]) -> float:
    """1 - cos of the angle between both as vectors: 0 where they point the same way; 1 where just one of them is zero."""
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


#: By PopRT's names. `gptq` is no loss of a tensor by itself; it is in `gptq.py`.
LOSSES: Mapping[str, Loss] = {"mse": mse, "mae": mae, "snr": noise_to_signal, "kld": kld, "cos_dist": cosine_distance}


def _difference(exact: NDArray[Any], rounded: NDArray[Any]) -> NDArray[np.float64]:
    difference: NDArray[np.float64] = np.subtract(exact, rounded, dtype=np.float64)
    return difference
