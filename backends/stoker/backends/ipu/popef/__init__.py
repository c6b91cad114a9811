"""The PopEF container: its logical schema, reader, writer and dump. The names are those of Graphcore's `popef` module, in snake_case.

The byte layout is Stoker's own, because the vendor's is not public: docs/popef.md.
"""

from stoker.backends.ipu.popef.model import Model, ModelBuilder, write_model
from stoker.backends.ipu.popef.reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from stoker.backends.ipu.popef.schema import (
    Anchor,
    BlobType,
    DataType,
    Metadata,
    Option,
    PackageHashMismatch,
    PopefError,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
    TensorType,
)
from stoker.backends.ipu.popef.writer import BlobWriter, FileWriter, Mode, Writer, append_opaque_blobs

__all__ = [
    "Anchor",
    "BlobType",
    "BlobWriter",
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
    "append_opaque_blobs",
    "write_model",
]
