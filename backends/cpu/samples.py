"""Samples as batches of a converted model."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from compiler.errors import OptionError
from compiler.precision.samples import batches_of, inputs_of, load_samples, random_batches
from compiler.target import SourceModel

Batches = list[dict[str, NDArray[Any]]]


def calibration_batches(source: SourceModel) -> Batches:
    """The samples that ranges are taken from.

    Raises:
        OptionError: there are none, their file cannot be read or fits the inputs in no way, or a value has no place in a range.
    """
    if source.samples is None:
        raise OptionError("--precision int8 needs --data_preprocess: samples to calibrate with, as a pickle or .npz of {input name: array}")
    batches = comparison_batches(source)
    for name in batches[0]:
        if not all(np.isfinite(batch[name]).all() for batch in batches):
            raise OptionError(f"calibration data for input '{name}' holds NaN or infinity; ranges are taken from finite values")
    return batches


def comparison_batches(source: SourceModel) -> Batches:
    """The samples, or random data where there are none.

    Raises:
        OptionError: as `calibration_batches`.
    """
    inputs = inputs_of(ir.from_proto(source.model).graph)
    return random_batches(inputs) if source.samples is None else batches_of(inputs, load_samples(source.samples))
