"""Build options: build flags, that is what the device computes in, and `resource_mode`, how many clusters an executable is meant for.

Inputs and outputs of the engine keep the types of the model, whatever the flag.

| flag | TopsInference | what is FLOAT16 |
|---|---|---|
| `fp32` | `KDEFAULT` | nothing that the model has not in FLOAT16 itself |
| `fp16` | `KFP16` | everything that may be |
| `mixed` | `KFP16_MIX` | Conv, ConvTranspose, Gemm and MatMul with their weights, where the time goes; all else, such as Softmax, normalisations, reductions and activations, stays FLOAT, since there sums and powers lose accuracy or leave FLOAT16's range |

`resource_mode`: how many clusters of the card an executable is meant to run on. TopsInference takes it as a key of `set_compile_options`;
which values its compiler knows is not published. Here it is a number of clusters, `<n>c` or plain `<n>`, or empty for all; it says what the
summary's latency and throughput are modelled for. The executable runs on any.
"""  # noqa: E501  a table's rows

import enum

import onnx_ir as ir

from stoker.backends.api.nearest import did_you_mean
from stoker.backends.gcu.hardware import GcuHardware
from stoker.compiler.errors import OptionError
from stoker.compiler.passes.precision import FloatToHalf, FloatToMixed


class BuildFlag(enum.Enum):
    """What an engine computes in."""

    FP32 = "fp32"
    FP16 = "fp16"
    MIXED = "mixed"

    @classmethod
    def of(cls, text: str) -> "BuildFlag":
        """The flag that `text` names, by our name or the vendor's.

        Raises:
            OptionError: there is none; the nearest is named.
        """
        wanted = text.strip()
        found = _NAMES.get(wanted.lower())
        if found is None:
            known = [each.value for each in cls]
            raise OptionError(f"build_flag: there is no '{text}'{did_you_mean(wanted.lower(), known)}; expected {', '.join(known)}")
        return cls(found)


#: The vendor's names too, also as Adlik's requests spell them.
_NAMES = {
    "": "fp32", "fp32": "fp32", "kdefault": "fp32", "default": "fp32",
    "fp16": "fp16", "kfp16": "fp16",
    "mixed": "mixed", "mix": "mixed", "kfp16_mix": "mixed", "fp16_mix": "mixed",
}  # fmt: skip


def apply_build_flag(model: ir.Model, flag: BuildFlag) -> None:
    """Changes the types inside `model`, which must be typed, in place."""
    if flag is BuildFlag.FP16:
        FloatToHalf(keep_io_types=True).run(model)
    elif flag is BuildFlag.MIXED:
        FloatToMixed().run(model)


def clusters_of(resource_mode: str, hardware: GcuHardware) -> int:
    """The clusters that `resource_mode` names.

    Raises:
        OptionError: it is no number of clusters that the card has.
    """
    text = resource_mode.strip().lower()
    if text in ("", "default", "all"):
        return hardware.clusters
    number = text.removesuffix("c")
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= hardware.clusters):
        raise OptionError(
            f"resource_mode is '{resource_mode}': expected a number of clusters from 1 to {hardware.clusters}, such as '1c', or 'all'"
        )
    return int(number)
