"""ONNX Runtime's error texts, made fit for others' eyes: no path of this host or of the machine that built the runtime."""

import re
from pathlib import Path

_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
#: `/onnxruntime_src/.../gather.h:40 onnxruntime::Gather::Prepare(const X&, ...) const `: where in the runtime's source it happened.
_SOURCE_PLACE = re.compile(r"\S*\.(?:cc|cpp|cxx|h|hpp|cu):\d+\s+(?:[^\n(]*\([^\n]*?\)(?: const)?(?= [A-Za-z*\[])|\w+)?\s*")
_LOAD_FROM = re.compile(r"Load model from .*? failed:\s*")


def public_text(error: Exception, folder: Path | None = None) -> str:
    """The text of an ONNX Runtime error, without status prefix, source places, and the path of `folder` (the version's copy)."""
    text = _STATUS.sub("", str(error).strip())
    text = _LOAD_FROM.sub("", text)
    text = _SOURCE_PLACE.sub("", text)
    if folder is not None:
        text = text.replace(f"{folder}/", "").replace(str(folder), "the version folder")
    return " ".join(text.split()) or type(error).__name__
