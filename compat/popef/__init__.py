"""The vendor's Python module `popef` over Stoker's own container: the schema is the same, the bytes are not (`docs/popef.md`).

reader = popef.Reader()
reader.parseFile("executable.popef")
reader.opaqueBlobs()[0].data()
"""

from typing import Any

import numpy as np
from stoker_compat import warn_beside_real
from stoker_compat.absent import absent
from stoker_compat.renaming import renamed

from stoker.backends.ipu.popef import model, reader, schema, writer
from stoker.backends.ipu.popef.schema import BlobType, DataType, PackageHashMismatch, PopefError, TensorType
from stoker.backends.ipu.popef.writer import Mode

warn_beside_real("popef")

Anchor = renamed(schema.Anchor)
Metadata = renamed(schema.Metadata)
Option = renamed(schema.Option)
ProgramFlow = renamed(schema.ProgramFlow)
TensorDataInfo = renamed(schema.TensorDataInfo)
TensorInfo = renamed(schema.TensorInfo)

ExecutableReader = renamed(reader.ExecutableReader)
FeedReader = renamed(reader.FeedReader)
OpaqueReader = renamed(reader.OpaqueReader)
Reader = renamed(reader.Reader)
TensorReader = renamed(reader.TensorReader)

FileWriter = renamed(writer.FileWriter)
Writer = renamed(writer.Writer)

Model = renamed(model.Model)
ModelBuilder = renamed(model.ModelBuilder)


def popefTypeToNumpyDType(data_type: DataType) -> "np.dtype[Any]":  # noqa: N802 - the vendor's name
    """Returns the numpy dtype for elements of `data_type`; 8-bit floats are codes in uint8."""
    return DataType(data_type).numpy


__all__ = [
    "Anchor",
    "BlobType",
    "DataType",
    "ExecutableReader",
    "FeedReader",
    "FileWriter",
    "Metadata",
    "Mode",
    "Model",
    "ModelBuilder",
    "OpaqueReader",
    "Option",
    "PackageHashMismatch",
    "PopefError",
    "ProgramFlow",
    "Reader",
    "TensorDataInfo",
    "TensorInfo",
    "TensorReader",
    "TensorType",
    "Writer",
    "popefTypeToNumpyDType",
]

__getattr__ = absent("popef", __all__)
