"""Reads the declarations of an ONNX file: versions, inputs, outputs, and the files of its external weights.

A serving install has no `onnx` package, and reading the interface must be cheaper than loading. So this module walks the file's protobuf
fields (numbers as in onnx.proto), skips the weights, and descends only into messages that it needs.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.backends.api.wire import MAX_FIELDS, Field, WireError, WireReader
from stoker.backends.onnx_files.zip_map import ZipMap, classifier_of

#: protobuf cannot hold more in one message; larger models keep their weights beside the file.
MAX_FILE_BYTES = 2**31 - 1
#: The key under which a tensor names the file its values are in: no tensor without these bytes is stored outside.
_LOCATION = b"location"
#: `TensorProto.DataType` of what a `ZipMap` reads.
_FLOAT = 1
#: Where tensors can be, beside a graph's own lists: message type -> field number -> type of the message there.
TENSOR_HOLDERS: dict[str, dict[int, str]] = {
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto", 6: "GraphProto", 10: "TensorProto", 11: "GraphProto", 22: "SparseTensorProto", 23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """A graph input or output.

    Attributes:
        name: Its name.
        kind: `tensor`, `sequence`, `map`, `sparse tensor`, `optional`, `opaque`, or `untyped`.
        element_type: `TensorProto.DataType` of a tensor; 0 where none is given.
        shape: -1 where a dim is symbolic or open; None where the rank is.
        labels: What each element of the last dim is called, where the file says so.
    """

    name: str
    kind: str
    element_type: int = 0
    shape: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """A tensor whose values lie in another file.

    Attributes:
        name: The tensor's name; empty where it has none.
        location: The file, as written.
        offset: First byte.
        length: Bytes; None: to the file's end.
    """

    name: str
    location: str
    offset: int = 0
    length: int | None = None


@dataclass(slots=True)
class OnnxFile:
    """The parts of a ModelProto that serving needs.

    Attributes:
        ir_version: Version of the file format.
        opsets: Operator set versions by domain; ONNX's own is `ai.onnx`.
        producer: Name and version of the tool that wrote it; may be empty.
        inputs: Without those that an initializer feeds.
        outputs: In file order. The result of a `ZipMap` is given as the tensor that it is made of.
        external: Tensors stored outside.
        zip_maps: By output: a runtime that is to give the tensor must be given the file without them.
        corrected: Outputs whose declared shape contradicts the operator that makes them.
    """

    ir_version: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    producer: str = ""
    inputs: tuple[OnnxValue, ...] = ()
    outputs: tuple[OnnxValue, ...] = ()
    external: tuple[ExternalTensor, ...] = ()
    zip_maps: Mapping[str, ZipMap] = field(default_factory=dict)
    corrected: tuple[str, ...] = ()


class UnreadableOnnx(Exception):
    """The file cannot be read as an ONNX model; the text says why."""


def read_onnx_file(path: Path) -> OnnxFile:
    """Reads the file at `path`.

    Raises:
        UnreadableOnnx: it is empty, truncated, corrupt, or something else than an ONNX model.
    """
    size = path.stat().st_size
    if size == 0:
        raise UnreadableOnnx("the file is empty")
    if size > MAX_FILE_BYTES:
        raise UnreadableOnnx(f"it has {size} bytes, protobuf's limit is {MAX_FILE_BYTES}: keep the weights in external data files")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:24] == b"version https://git-lfs.":
            raise UnreadableOnnx("it is a Git LFS pointer, not the model itself: run `git lfs pull`")
        try:
            return _Walk(data).model(size)
        except WireError as error:
            raise UnreadableOnnx(f"{error} ({size} bytes in all): truncated, corrupt or not ONNX") from None


class _Walk:
    """One pass over a file. Methods are named after the messages of onnx.proto; `depth` counts messages from the top."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._reader = WireReader(data, noun="file", max_fields=MAX_FIELDS)
        self._external: list[ExternalTensor] = []

    def model(self, size: int) -> OnnxFile:
        found = OnnxFile()
        producer = {2: "", 3: ""}
        graph: Field | None = None
        for item in self._reader.nested_fields(0, size, 1):
            match item.number:
                case 1:
                    found.ir_version = item.signed
                case 2 | 3:
                    producer[item.number] = self._reader.text(item)
                case 7:
                    graph = item
                    found.inputs, found.outputs = self._graph(item, 2)
                case 8:
                    domain, version = self._opset(item, 2)
                    found.opsets[domain or "ai.onnx"] = version
                case 20:
                    self._seek_external(item, "TrainingInfoProto", 2)
                case 25:
                    self._seek_external(item, "FunctionProto", 2)
        if graph is None:
            raise UnreadableOnnx("it holds no graph: not an ONNX model")
        if found.ir_version <= 0:
            raise UnreadableOnnx("it names no IR version: not an ONNX model")
        found.producer = " ".join(part for part in producer.values() if part)
        found.external = tuple(self._external)
        self._correct_outputs(found, graph)
        return found

    def _correct_outputs(self, found: OnnxFile, graph: Field) -> None:
        """Looks at the nodes of classifiers, which exporters end with a `ZipMap` or with labels that they declare `[1]` for any rows."""
        rows = next((value.shape[0] for value in found.inputs if value.shape), -1)
        suspects = [value.name for value in found.outputs if value.kind == "sequence" or (value.shape == (1,) and rows == -1)]
        if not suspects:
            return
        end = classifier_of(self._reader, graph, suspects)
        found.zip_maps = end.zip_maps
        found.corrected = tuple(sorted(end.rows))
        changed = []
        for value in found.outputs:
            if value.name in end.zip_maps:
                labels = end.zip_maps[value.name].labels
                value = OnnxValue(value.name, "tensor", _FLOAT, (rows, len(labels)), labels)
            elif value.name in end.rows:
                value = replace(value, shape=(-1,))
            changed.append(value)
        found.outputs = tuple(changed)

    def _opset(self, message: Field, depth: int) -> tuple[str, int]:
        domain, version = "", 0
        for item in self._message(message, depth):
            if item.number == 1:
                domain = self._reader.text(item)
            elif item.number == 2:
                version = item.signed
        return domain, version

    def _graph(self, message: Field, depth: int) -> tuple[tuple[OnnxValue, ...], tuple[OnnxValue, ...]]:
        inputs: list[OnnxValue] = []
        outputs: list[OnnxValue] = []
        fed: set[str] = set()
        for item in self._message(message, depth):
            match item.number:
                case 1:
                    self._seek_external(item, "NodeProto", depth + 1)
                case 5:
                    fed.add(self._tensor(item, depth + 1))
                case 11:
                    inputs.append(self._value_info(item, depth + 1))
                case 12:
                    outputs.append(self._value_info(item, depth + 1))
                case 15:
                    fed.add(self._sparse_tensor(item, depth + 1))
        return tuple(value for value in inputs if value.name not in fed), tuple(outputs)

    def _value_info(self, message: Field, depth: int) -> OnnxValue:
        value = OnnxValue("", "untyped")
        for item in self._message(message, depth):
            if item.number == 1:
                value = OnnxValue(self._reader.text(item), value.kind, value.element_type, value.shape)
            elif item.number == 2:
                value = self._type(value.name, item, depth + 1)
        return value

    def _type(self, name: str, message: Field, depth: int) -> OnnxValue:
        kinds = {1: "tensor", 4: "sequence", 5: "map", 7: "opaque", 8: "sparse tensor", 9: "optional"}
        for item in self._message(message, depth):
            if item.number == 1:
                return self._tensor_type(name, item, depth + 1)
            if item.number in kinds:
                return OnnxValue(name, kinds[item.number])
        return OnnxValue(name, "untyped")

    def _tensor_type(self, name: str, message: Field, depth: int) -> OnnxValue:
        element_type = 0
        shape: tuple[int, ...] | None = None
        for item in self._message(message, depth):
            if item.number == 1:
                element_type = item.signed
            elif item.number == 2:
                shape = tuple(self._dimension(dim, depth + 2) for dim in self._message(item, depth + 1) if dim.number == 1)
        return OnnxValue(name, "tensor", element_type, shape)

    def _dimension(self, message: Field, depth: int) -> int:
        size = -1
        for item in self._message(message, depth):
            if item.number == 1:
                size = max(-1, item.signed)
        return size

    def _tensor(self, message: Field, depth: int) -> str:
        """Notes the tensor if it is stored outside; returns its name."""
        name = ""
        entries: list[tuple[str, str]] = []
        for item in self._message(message, depth):
            if item.number == 8:
                name = self._reader.text(item)
            elif item.number == 13:
                entry = {part.number: self._reader.text(part) for part in self._message(item, depth + 1)}
                entries.append((entry.get(1, ""), entry.get(2, "")))
        if entries:
            self._note_external(name, entries)
        return name

    def _note_external(self, name: str, entries: list[tuple[str, str]]) -> None:
        numbers: dict[str, int] = {}
        for key, text in entries:
            if key in ("offset", "length"):
                if not (text.isascii() and text.isdecimal() and len(text) < 20):
                    raise UnreadableOnnx(f"the external data of tensor '{name}' has {key} '{text}', expected a number")
                numbers[key] = int(text)
        locations = [text for key, text in entries if key == "location"]
        # Every location of a file that names several is held to the rules: which of them a runtime would take is its own affair.
        for location in locations or [""]:
            self._external.append(ExternalTensor(name, location, numbers.get("offset", 0), numbers.get("length")))

    def _sparse_tensor(self, message: Field, depth: int) -> str:
        name = ""
        for item in self._message(message, depth):
            if item.number == 1:
                name = self._tensor(item, depth + 1)
            elif item.number == 2:
                self._tensor(item, depth + 1)
        return name

    def _seek_external(self, message: Field, kind: str, depth: int) -> None:
        """Notes the external tensors anywhere below `message`, which is a `kind`."""
        if kind == "TensorProto":
            self._tensor(message, depth)
        elif self._data.find(_LOCATION, message.start, message.end) >= 0:
            for item in self._message(message, depth):
                child = TENSOR_HOLDERS[kind].get(item.number)
                if child is not None:
                    self._seek_external(item, child, depth + 1)

    def _message(self, message: Field, depth: int) -> Iterator[Field]:
        if not message.is_message:
            raise WireError(f"field {message.number} before byte {message.end} should be a message, and is a number")
        return self._reader.nested_fields(message.start, message.end, depth)
