"""OpenVINO's error texts, made fit for others' eyes: one line, no path of this host or of the machine that built the runtime."""

import re
from pathlib import Path

#: A text may quote names out of the model file, which may be of any length.
MAX_CHARACTERS = 4096

#: Where in the runtime's source it happened: `Exception from src/core.cpp:84:`, `Check 'x' failed at src/core/shape.hpp:299:`.
_SOURCE_PLACE = re.compile(r"(?:Exception from|Check '[^'\n]{0,300}' failed at) \S{1,300}:\d+:\s*")
_ADVICE = re.compile(r"To facilitate the conversion of unsupported operations.*", re.DOTALL)


def public_text(error: Exception, folder: Path | None = None) -> str:
    """The text of an OpenVINO error, without source places, and without the path of `folder` (the version's copy)."""
    text = str(error).strip()
    if folder is not None:
        text = text.replace(f"{folder}/", "").replace(str(folder), "the version folder")
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}..."
    text = _ADVICE.sub("", _SOURCE_PLACE.sub("", text))
    return " ".join(text.split()) or type(error).__name__
