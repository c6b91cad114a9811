"""The accuracy of each precision: what the simulated device computes, compared with the source model on ONNX Runtime."""

import math
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from stoker.cli.plan.conversions import Conversions
from stoker.cli.plan.model import Accuracy, OutputDrift
from stoker.cli.plan.texts import one_line
from stoker.compiler.check import LEAST_SNR_DB, OutputError, compare_models, failure_of_check
from stoker.compiler.errors import CompileError, NotComparableError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.precision.samples import batches_of, inputs_of
from stoker.compiler.sizing import SizedDevice
from stoker.compiler.target import Target

Samples = Mapping[str, NDArray[Any]]

#: Seconds that each of the two models may run.
LIMIT_S = 60.0
#: Batches of given samples that are run.
MOST_BATCHES = 16
_GENERATED = "generated data: standard normal floats, integers 0 and 1"


def accuracy_of(target: Target, device: SizedDevice, precision: str, conversions: Conversions, samples: Samples | None) -> Accuracy:
    """Compares the model as `device` computes it in `precision` with the source model, on `samples` or else on generated data."""
    name = target.name
    try:
        source = conversions.of(target, precision)
        chosen: Mapping[str, Any] = target.sizing_options(device, precision)
        options = CompilerOptions(**chosen)
        target.check_options(options, [precision])
        lowered = target.lowered(source, options)
        batches = [] if samples is None else batches_of(inputs_of(ir.from_proto(lowered).graph), samples)[:MOST_BATCHES]
        errors = compare_models(conversions.source, lowered, limit_s=LIMIT_S, samples=batches)
    except NotComparableError as error:
        return Accuracy(target=name, precision=precision, problem=str(error).removeprefix("check: "))
    except CompileError as error:
        return Accuracy(target=name, precision=precision, problem=one_line(error))
    limits = precision if precision in LEAST_SNR_DB else "fp16"  # mixed computes some operators in FLOAT16
    return Accuracy(
        target=name,
        precision=precision,
        outputs=tuple(_drift(each) for each in errors),
        samples=f"{len(batches)} batches of the given samples" if batches else _GENERATED,
        failures=tuple(failure for each in errors if (failure := failure_of_check(each, limits))),
    )


def _drift(error: OutputError) -> OutputDrift:
    if error.not_comparable:
        return OutputDrift(output=error.name, snr_db=None, cosine=None, note=f"not comparable: {error.not_comparable}")
    if math.isnan(error.snr_db):
        return OutputDrift(
            output=error.name, snr_db=None, cosine=None, note=f"{1 - (error.different or 0.0):.2%} of the elements are equal"
        )
    return OutputDrift(output=error.name, snr_db=error.snr_db, cosine=error.cosine)
