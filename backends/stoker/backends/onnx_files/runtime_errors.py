"""What ONNX Runtime's Python interface raises for what is wrong with a model, with a run, or with the memory that it takes.

Its own classes have nothing above them but `Exception`, and there are more of them with each release: so they are taken from where they are
defined. Beside them it raises RuntimeError and ValueError, also in the stead of one of its own whose text is not UTF-8.
"""

from onnxruntime.capi import onnxruntime_pybind11_state as native

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    ValueError,
    MemoryError,
)
