"""The names that a TensorFlow Lite file gives its inputs and outputs in its signature; OpenVINO reports the names of tensors only.

A client of the original model knows the signature's names, such as `x`; the tensor is `serving_default_x:0`.

The file is a FlatBuffer of TensorFlow's `tensorflow/compiler/mlir/lite/schema/schema.fbs`. A table begins with the distance back to a list
of the places of its fields, in the order of the schema. A field that is a text, vector or table holds the distance to it.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

IDENTIFIER = b"TFL3"
#: Fields of the tables `Model`, `SubGraph`, `Tensor`, `SignatureDef` and `TensorMap`.
_MODEL_SUBGRAPHS, _MODEL_SIGNATURES = 2, 7
_SUBGRAPH_TENSORS = 0
_TENSOR_NAME = 3
_SIGNATURE_INPUTS, _SIGNATURE_OUTPUTS, _SIGNATURE_KEY, _SIGNATURE_SUBGRAPH = 0, 1, 2, 4
_MAP_NAME, _MAP_TENSOR = 0, 1
_HEADER_BYTES = 8
#: What TensorFlow calls the signature that servers use.
_DEFAULT = "serving_default"
#: Entries of a vector; the largest has all tensors of a graph.
_MAX_ENTRIES = 1 << 20
_MAX_NAME_BYTES = 4096


class DamagedTflite(Exception):
    """The file is no TensorFlow Lite model, or damaged; the text says how."""


@dataclass(frozen=True, slots=True)
class SignatureNames:
    """The names in the signature of the graph that is served, by the names of tensors; empty without a signature."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def signature_names(path: Path) -> SignatureNames:
    """Reads the signature `serving_default` of the file's first graph, or, without it, the first signature of that graph.

    Raises:
        DamagedTflite: the file is of another format, or a part of it is beyond its end.
    """
    if path.stat().st_size < _HEADER_BYTES:
        raise DamagedTflite("it is too short")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[4:8] != IDENTIFIER:
            raise DamagedTflite(f"its bytes 4 to 8 are not {IDENTIFIER.decode()}")
        try:
            return _names(_Table(data, struct.unpack_from("<I", data)[0]))
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise DamagedTflite("a part of it is beyond its end, or a name is not UTF-8") from error


def _names(model: "_Table") -> SignatureNames:
    tensors = next(model.tables(_MODEL_SUBGRAPHS)).tables(_SUBGRAPH_TENSORS) if model.count(_MODEL_SUBGRAPHS) else iter(())
    names = [tensor.text(_TENSOR_NAME) for tensor in tensors]
    signatures = [each for each in model.tables(_MODEL_SIGNATURES) if each.number(_SIGNATURE_SUBGRAPH) == 0]
    signatures.sort(key=lambda each: each.text(_SIGNATURE_KEY) != _DEFAULT)
    if not signatures:
        return SignatureNames({}, {})
    sides = (
        {names[entry.number(_MAP_TENSOR)]: entry.text(_MAP_NAME) for entry in signatures[0].tables(side)}
        for side in (_SIGNATURE_INPUTS, _SIGNATURE_OUTPUTS)
    )
    return SignatureNames(*sides)


class _Table:
    """A table of the FlatBuffer. Every method raises `struct.error` where it would read beyond the end."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise struct.error
        self._fields_bytes = struct.unpack_from("<H", data, self._fields)[0]

    def number(self, field: int) -> int:
        """An unsigned number of 32 bits; 0 where it is not written."""
        at = self._place(field)
        return 0 if at is None else int(struct.unpack_from("<I", self._data, at)[0])

    def text(self, field: int) -> str:
        """A text; empty where it is not written."""
        found = self._sized(field)
        if found is None:
            return ""
        start, size = found
        if size > _MAX_NAME_BYTES or start + size > len(self._data):
            raise struct.error
        return self._data[start : start + size].decode()

    def count(self, field: int) -> int:
        """How many entries a vector has."""
        found = self._sized(field)
        return 0 if found is None else found[1]

    def tables(self, field: int) -> "Iterator[_Table]":
        """The tables of a vector."""
        found = self._sized(field)
        start, count = (0, 0) if found is None else found
        if count > _MAX_ENTRIES:
            raise struct.error
        for at in range(start, start + 4 * count, 4):
            yield _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0])

    def _sized(self, field: int) -> tuple[int, int] | None:
        """Where the content of a text or vector begins, and its size."""
        at = self._place(field)
        if at is None:
            return None
        at += struct.unpack_from("<I", self._data, at)[0]
        return at + 4, int(struct.unpack_from("<I", self._data, at)[0])

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._fields_bytes:
            return None
        distance = struct.unpack_from("<H", self._data, self._fields + entry)[0]
        return self._at + distance if distance else None
