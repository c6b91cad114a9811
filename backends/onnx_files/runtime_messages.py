"""ONNX Runtime's error texts, made fit for others' eyes: no path of this host or of the machine that built the runtime."""

import re
from pathlib import Path

#: A text may quote names out of the model file, which may be of any length; more of it helps nobody, and the patterns below are not linear.
MAX_CHARACTERS = 4096

_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
#: `/onnxruntime_src/.../gather.h:40 onnxruntime::Gather::Prepare(const X&, ...) const `: where in the runtime's source it happened.
_SOURCE_PLACE = re.compile(
    r"\S{0,300}\.(?:cc|cpp|cxx|h|hpp|cu):\d+\s+(?:[^\n(]{0,300}\([^\n]{0,600}?\)(?: const)?(?= [A-Za-z*\[])|\w+)?\s*"
)
_LOAD_FROM = re.compile(r"Load model from .{0,2000}? failed:\s*")


def public_text(error: Exception, folder: Path | None = None) -> str:
    """The text of an ONNX Runtime error, without status prefix, source places, and the path of `folder` (the version's copy)."""
    text = str(error).strip()
    if folder is not None:
        text = text.replace(f"{folder}/", "").replace(str(folder), "the version folder")
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}..."
    text = _STATUS.sub("", text)
    text = _LOAD_FROM.sub("", text)
    text = _SOURCE_PLACE.sub("", text)
    return " ".join(text.split()) or type(error).__name__
