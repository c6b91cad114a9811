"""The PopEF container: its logical schema, reader, writer and dump. The names are those of Graphcore's `popef` module, in snake_case.

Our own bytes, since the vendor's layout is not public: docs/popef.md.
"""

from stoker.backends.ipu.popef.append import append_opaque_blobs
from stoker.backends.ipu.popef.blob_row import BlobWriter
from stoker.backends.ipu.popef.errors import PackageHashMismatch, PopefError
from stoker.backends.ipu.popef.model import Model, ModelBuilder, write_model
from stoker.backends.ipu.popef.reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from stoker.backends.ipu.popef.schema import (
    Anchor,
    BlobType,
    DataType,
    Metadata,
    Option,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
    TensorType,
)
from stoker.backends.ipu.popef.writer import FileWriter, Mode, Writer

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
