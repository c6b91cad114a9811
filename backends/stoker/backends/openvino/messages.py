"""OpenVINO's error texts, made fit for others' eyes: one line, no path of this host or of the machine that built the runtime."""

import re
from collections.abc import Sequence
from pathlib import Path

from stoker.backends.api.error_text import tidied

#: Where in the runtime's source it happened: `Exception from src/core.cpp:84:`, `Check 'x' failed at src/core/shape.hpp:299:`.
_SOURCE_POSITION = re.compile(r"(?:Exception from|Check '[^'\n]{0,300}' failed at) \S{1,300}:\d+:\s*")
_ADVICE = re.compile(r"To facilitate the conversion of unsupported operations.*", re.DOTALL)


#: Operators that a refusal names.
_NAMED = 4


def named(operators: Sequence[str]) -> str:
    """The first of `operators`, and how many more there are."""
    more = f" and {len(operators) - _NAMED} more" if len(operators) > _NAMED else ""
    return f"{', '.join(operators[:_NAMED])}{more}"


def refusal_of(inexact: Sequence[str]) -> str:
    """Why a model with the operators `inexact`, which compute integers inexactly, is not served, and what to do."""
    return (
        f"OpenVINO's CPU plugin computes integers of {named(inexact)} in single precision or with saturation, "
        "not as ONNX says: "
        "backend onnxruntime serves ONNX files exactly; 'true' serves the model here, for integer inputs of -16777216 to 16777216"
    )


def public_text(error: Exception, folder: Path | None = None) -> str:
    """The text of an OpenVINO error, without source places, and without the path of `folder` (the version's copy)."""
    return tidied(error, folder, (_SOURCE_POSITION, _ADVICE))
