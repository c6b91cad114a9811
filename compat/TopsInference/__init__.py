"""The vendor's Python module `TopsInference`, on simulated cards.

with TopsInference.device(0, 0):
    network = TopsInference.create_parser(TopsInference.ONNX_MODEL).read("model.onnx")
    engine = TopsInference.create_optimizer().build(network)
    engine.save_executable("model.exec")

Names and arguments are those of public scripts and of the vendor's public header; their behaviour is Stoker's, on simulated cards. Every
failure is raised as a `StatusError` and reported to all error managers. Reading models needs Stoker's compiler; loading and running
engines does not.
"""

# ruff: noqa: N999 - the name is the vendor's

from importlib.metadata import version as _distribution_version
from typing import NamedTuple

from stoker_compat import warn_beside_real
from stoker_compat.absent import absent

from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.gcu.runtime.stream import Stream
from TopsInference.constants import BufferType, BuildFlag, DType, MemcpyKind, ParserType
from TopsInference.device_memory import (
    mem_alloc,
    mem_copy,
    mem_copy_async,
    mem_d2h_copy,
    mem_free,
    mem_h2d_copy,
)
from TopsInference.error_manager import ErrorManager, create_error_manager
from TopsInference.owned_devices import PyFuture, create_stream, destroy_stream, device, release_device, set_device, synchronize_stream
from TopsInference.parser import Optimizer, Parser, create_optimizer, create_parser
from TopsInference.py_engine import PyEngine, load

warn_beside_real("TopsInference")

__all__ = [
    "DT_BOOL",
    "DT_FLOAT16",
    "DT_FLOAT32",
    "DT_FLOAT64",
    "DT_INT8",
    "DT_INT16",
    "DT_INT32",
    "DT_INT64",
    "DT_UINT8",
    "DT_UINT16",
    "DT_UINT32",
    "DT_UINT64",
    "KDEFAULT",
    "KFP16",
    "KFP16_MIX",
    "KINT8_MIX_FP32",
    "KREFIT",
    "ONNX_MODEL",
    "TF_MODEL",
    "TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE",
    "TIF_ENGINE_RSC_IN_HOST_OUT_HOST",
    "TIF_MEMCPY_DEVICE_TO_HOST",
    "TIF_MEMCPY_HOST_TO_DEVICE",
    "BufferType",
    "BuildFlag",
    "DType",
    "ErrorManager",
    "MemcpyKind",
    "Optimizer",
    "Parser",
    "ParserType",
    "PyEngine",
    "PyFuture",
    "Status",
    "StatusError",
    "Stream",
    "TIFStatus",
    "VersionInfo",
    "__version__",
    "create_error_manager",
    "create_optimizer",
    "create_parser",
    "create_stream",
    "destroy_stream",
    "device",
    "load",
    "mem_alloc",
    "mem_copy",
    "mem_copy_async",
    "mem_d2h_copy",
    "mem_free",
    "mem_h2d_copy",
    "release_device",
    "set_device",
    "synchronize_stream",
    "version",
]

TIFStatus = Status

ONNX_MODEL, TF_MODEL = ParserType
TIF_ENGINE_RSC_IN_HOST_OUT_HOST, TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE = BufferType
TIF_MEMCPY_HOST_TO_DEVICE, TIF_MEMCPY_DEVICE_TO_HOST = MemcpyKind
KDEFAULT, KFP16, KFP16_MIX = BuildFlag.KDEFAULT, BuildFlag.KFP16, BuildFlag.KFP16_MIX
KINT8_MIX_FP32, KREFIT = BuildFlag.KINT8_MIX_FP32, BuildFlag.KREFIT
DT_BOOL, DT_INT8, DT_INT16, DT_INT32, DT_INT64 = DType.DT_BOOL, DType.DT_INT8, DType.DT_INT16, DType.DT_INT32, DType.DT_INT64
DT_UINT8, DT_UINT16, DT_UINT32, DT_UINT64 = DType.DT_UINT8, DType.DT_UINT16, DType.DT_UINT32, DType.DT_UINT64
DT_FLOAT16, DT_FLOAT32, DT_FLOAT64 = DType.DT_FLOAT16, DType.DT_FLOAT32, DType.DT_FLOAT64

globals().update(Status.__members__)  # TIF_SUCCESS and all the others
__all__ += Status.__members__

_IMPLICIT = "devices are set up by device() and set_device() alone"
_ABSENT = {
    "create_refitter": "an executable is compiled again instead of refitted",
    "topsInference_init": _IMPLICIT,
    "topsInference_finish": _IMPLICIT,
}
__getattr__ = absent("TopsInference", __all__, _ABSENT)

__version__ = f"{_distribution_version('stoker')} (Stoker, simulated)"


class VersionInfo(NamedTuple):
    """The version of this runtime."""

    major: int
    minor: int
    patch: int
    tweak: int


def version() -> VersionInfo:
    """The version in numbers."""
    numbers = [int(part) if part.isdecimal() else 0 for part in _distribution_version("stoker").split(".")]
    major, minor, patch, tweak, *_ = [*numbers, 0, 0, 0, 0]
    return VersionInfo(major, minor, patch, tweak)
