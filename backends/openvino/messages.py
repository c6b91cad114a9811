"""OpenVINO's error texts, made fit for others' eyes: one line, no path of this host or of the machine that built the runtime."""

import re
from pathlib import Path

from backends.api.error_text import tidied

#: Where in the runtime's source it happened: `Exception from src/core.cpp:84:`, `Check 'x' failed at src/core/shape.hpp:299:`.
_SOURCE_PLACE = re.compile(r"(?:Exception from|Check '[^'\n]{0,300}' failed at) \S{1,300}:\d+:\s*")
_ADVICE = re.compile(r"To facilitate the conversion of unsupported operations.*", re.DOTALL)


def public_text(error: Exception, folder: Path | None = None) -> str:
    """The text of an OpenVINO error, without source places, and without the path of `folder` (the version's copy)."""
    return tidied(error, folder, (_SOURCE_PLACE, _ADVICE))
