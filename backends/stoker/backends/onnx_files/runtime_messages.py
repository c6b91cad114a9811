"""ONNX Runtime's error texts, made fit for others' eyes: no path of this host or of the machine that built the runtime."""

import re
from pathlib import Path

from stoker.backends.api.error_text import tidied

_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
#: `/onnxruntime_src/.../gather.h:40 onnxruntime::Gather::Prepare(const X&, ...) const `: where in the runtime's source it happened.
_SOURCE_POSITION = re.compile(
    r"\S{0,300}\.(?:cc|cpp|cxx|h|hpp|cu):\d+\s+(?:[^\n(]{0,300}\([^\n]{0,600}?\)(?: const)?(?= [A-Za-z*\[])|\w+)?\s*"
)
_LOAD_FROM = re.compile(r"Load model from .{0,2000}? failed:\s*")


def public_text(error: Exception, folder: Path | None = None) -> str:
    """The text of an ONNX Runtime error, without status prefix, source places, and the path of `folder` (the version's copy)."""
    return tidied(error, folder, (_STATUS, _LOAD_FROM, _SOURCE_POSITION))
