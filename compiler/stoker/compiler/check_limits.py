"""How far from its source a converted model may be before `--check` fails, by precision.

The figure is the signal to noise of an output over random data, in decibels: 20 dB are an error of a tenth of the output's root mean
square, 60 dB of a thousandth. Rounding and other orders of summation stay above these limits by 10 dB or more in the networks that this was
tried on (convolutions, transformers, recurrent ones); another function falls far below. Whole numbers have no noise: the limit is the share
of elements that may be others, as the index of the larger of two almost equal scores may.
"""

from stoker.compiler.check import OutputError
from stoker.compiler.precision.drift import OutputDrift

LEAST_SNR_DB = {"fp32": 60.0, "fp16": 30.0, "bf16": 20.0, "fp8_weight": 15.0, "int8_dynamic": 15.0, "fp8": 10.0, "int8": 10.0}
MOST_DIFFERENT = {"fp32": 0.001, "fp16": 0.05, "bf16": 0.1, "fp8_weight": 0.2, "int8_dynamic": 0.2, "fp8": 0.5, "int8": 0.5}
#: Root mean square of the differences that is no error whatever the output: it may be zero but for rounding.
_NEGLIGIBLE = 1e-7


def failure_of_check(error: OutputError, precision: str) -> str:
    """What is wrong with an output that `--check` compared; empty where it is within the limits, or not comparable."""
    if error.not_comparable:
        return ""
    if error.different is not None:
        most = MOST_DIFFERENT[precision]
        allowed = max(int(most * error.elements), 0 if precision == "fp32" else 1)
        count = round(error.different * error.elements)
        return (
            f"output '{error.name}' differs in {count} of {error.elements} elements; {precision} may in {allowed}"
            if count > allowed
            else ""
        )
    if error.mean_square_error <= _NEGLIGIBLE**2:
        return ""
    return _below(error.name, error.snr_db, precision)


def failure_of_drift(drift: OutputDrift, precision: str) -> str:
    """The same of an output that a target compared."""
    if drift.equal is not None:
        if 1 - drift.equal <= MOST_DIFFERENT[precision]:
            return ""
        return f"output '{drift.output}' has {drift.equal:.2%} of its strings in common with the source's"
    if drift.snr_db is None or drift.mse is None or drift.mse <= _NEGLIGIBLE**2:
        return ""
    return _below(drift.output, drift.snr_db, precision)


def _below(name: str, snr_db: float, precision: str) -> str:
    least = LEAST_SNR_DB[precision]
    if snr_db >= least:  # False of NaN
        return ""
    return f"output '{name}' has a signal to noise of {snr_db:.1f} dB; {precision} needs {least:g} dB"
