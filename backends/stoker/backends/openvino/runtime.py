"""OpenVINO's element types, errors and error texts. Needs no OpenVINO."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.backends.api.errors import tidied
from stoker.backends.api.model import ModelFacts
from stoker.backends.api.tensor import DataType


@dataclass(frozen=True, slots=True)
class GraphFacts(ModelFacts):
    """`ModelFacts` of a file that OpenVINO itself read: of any format but ONNX.

    Attributes:
        inexact: Operators that compute integers inexactly; see `stoker.backends.openvino.integers`.
    """

    inexact: tuple[str, ...] = ()


#: Element types that the CPU plugin supports. It accepts strings too, but the end of an infer request that held one crashes the process
#: (2026.4).
SERVED: dict[str, DataType] = {
    "boolean": DataType.BOOL, "u8": DataType.UINT8, "u16": DataType.UINT16, "u32": DataType.UINT32, "u64": DataType.UINT64,
    "i8": DataType.INT8, "i16": DataType.INT16, "i32": DataType.INT32, "i64": DataType.INT64,
    "f16": DataType.FP16, "f32": DataType.FP32, "f64": DataType.FP64, "bf16": DataType.BF16,
}  # fmt: skip

#: Types that the CPU plugin computes as INT32, and cuts to it without a word: a larger value must not get in.
NARROWED = frozenset({DataType.INT64, DataType.UINT64, DataType.UINT32})


#: All of its own errors come as RuntimeError; where the text of one holds a name that is not UTF-8, making a `str` of it fails instead.
OPENVINO_ERRORS = (RuntimeError, UnicodeDecodeError)


#: Where in the runtime's source it happened: `Exception from src/core.cpp:84:`, `Check 'x' failed at src/core/shape.hpp:299:`.
_SOURCE_POSITION = re.compile(r"(?:Exception from|Check '[^'\n]{0,300}' failed at) \S{1,300}:\d+:\s*")
_ADVICE = re.compile(r"To facilitate the conversion of unsupported operations.*", re.DOTALL)


#: Operators that a rejection names.
_NAMED = 4


def named(operators: Sequence[str]) -> str:
    """The first of `operators`, and how many more there are."""
    more = f" and {len(operators) - _NAMED} more" if len(operators) > _NAMED else ""
    return f"{', '.join(operators[:_NAMED])}{more}"


def rejection_of(inexact: Sequence[str]) -> str:
    """Why a model with the operators `inexact`, which compute integers inexactly, is not served, and what to do."""
    return (
        f"OpenVINO's CPU plugin computes integers of {named(inexact)} in single precision or with saturation, "
        "not as ONNX says: "
        "backend onnxruntime serves ONNX files exactly; 'true' serves the model here, for integer inputs of -16777216 to 16777216"
    )


def public_text(error: Exception, folder: Path | None = None) -> str:
    """The text of an OpenVINO error, without source places, and without the path of `folder` (the version's copy)."""
    return tidied(error, folder, (_SOURCE_POSITION, _ADVICE))
