"""ONNX Runtime's errors: the classes that its Python interface raises, and texts without paths of this host.

`ORT_ERRORS` lists what ONNX Runtime's Python interface raises for a bad model, a failed run, or missing memory. Its own classes inherit
from `Exception` directly, and each release adds some: so this module collects them from the extension module that defines them. ONNX
Runtime also raises RuntimeError and ValueError, for example if the text of an error is not UTF-8.
"""

import re
from pathlib import Path

from onnxruntime.capi import onnxruntime_pybind11_state as native

from stoker.backends.api.errors import tidied

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    ValueError,
    MemoryError,
)


_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
#: `/onnxruntime_src/.../gather.h:40 onnxruntime::Gather::Prepare(const X&, ...) const `: where in the runtime's source it happened.
_SOURCE_POSITION = re.compile(
    r"\S{0,300}\.(?:cc|cpp|cxx|h|hpp|cu):\d+\s+(?:[^\n(]{0,300}\([^\n]{0,600}?\)(?: const)?(?= [A-Za-z*\[])|\w+)?\s*"
)
_LOAD_FROM = re.compile(r"Load model from .{0,2000}? failed:\s*")


def public_text(error: Exception, folder: Path | None = None) -> str:
    """The text of an ONNX Runtime error, without status prefix, source places, and the path of `folder` (the version's copy)."""
    return tidied(error, folder, (_STATUS, _LOAD_FROM, _SOURCE_POSITION))
