"""Provides `onnx.mapping`, which `onnx` removed in 1.19, to scripts that import dtypes from it.

`stoker_compat.pth` imports this module when Python starts, so that it works before a script imports any of the shims. It adds a finder for
this one name at the end of `sys.meta_path`: a module of onnx itself comes first, and nothing of onnx is imported until a script asks.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

NAME = "onnx.mapping"


class MappingFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and makes the module `onnx.mapping`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(NAME, self, origin="stoker-compat") if fullname == NAME else None

    def exec_module(self, module: ModuleType) -> None:
        """Fills in the tables of onnx 1.18 and before."""
        from onnx import TensorProto, helper

        kinds = [kind for kind in TensorProto.DataType.values() if kind != TensorProto.UNDEFINED]
        dtypes = {kind: helper.tensor_dtype_to_np_dtype(kind) for kind in kinds}
        storage = {kind: int(helper.tensor_dtype_to_storage_tensor_dtype(kind)) for kind in kinds}
        module.__doc__ = "Tables of element types: numpy dtypes, storage types, and the fields of TensorProto."
        vars(module).update(
            TENSOR_TYPE_TO_NP_TYPE=dtypes,
            NP_TYPE_TO_TENSOR_TYPE={dtype: kind for kind, dtype in reversed(dtypes.items())},
            TENSOR_TYPE_TO_STORAGE_TENSOR_TYPE=storage,
            STORAGE_TENSOR_TYPE_TO_FIELD={kind: helper.tensor_dtype_to_field(kind) for kind in set(storage.values())},
        )


def install() -> None:
    """Adds the finder, once."""
    if not any(isinstance(finder, MappingFinder) for finder in sys.meta_path):
        sys.meta_path.append(MappingFinder())


install()
