"""Classifiers as skl2onnx and onnxmltools write them by default: their last node, `ZipMap`, makes a list of dictionaries of a tensor.

No client can be sent such a list, and nothing but the classes' names is in it that the tensor `[rows, classes]` has not. So that tensor is
served, under the name of the output, with the classes as its labels. The file that ONNX Runtime is given has a `Cast` to FLOAT in place of
the `ZipMap`: it is rewritten field by field on the wire, as the server has no `onnx` package. The cast changes nothing where the tensor is
FLOAT, as the operator demands; exporters give it DOUBLE where the model was trained on that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.backends.api.wire import Field, WireError, WireReader, encoded_field, encoded_number

_FLOAT = 1
#: `AttributeProto.AttributeType.INT`.
_INT = 2
#: Opset for a `Cast` where the file names none for ONNX's own operators.
_OPSET = 13
#: Operators whose first output is, by the standard, one class for each row.
_CLASSIFIERS = frozenset({"LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"})
#: Operators that give what they take, element by element.
_PASSING = frozenset({"Cast", "Identity"})


@dataclass(frozen=True, slots=True)
class ZipMap:
    """A `ZipMap` whose result is an output of the graph.

    Attributes:
        source: The tensor that it reads, `[rows, classes]` of FLOAT, or of DOUBLE against the standard.
        labels: Names of the classes, in the order of the columns.
    """

    source: str
    labels: tuple[str, ...]


@dataclass(slots=True)
class Classifier:
    """The facts of the outputs that the end of a graph states.

    Attributes:
        zip_maps: By output.
        rows: Outputs that hold one element for each row, whatever shape the file declares.
    """

    zip_maps: dict[str, ZipMap] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Node:
    operator: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    labels: tuple[str, ...] = ()


def classifier_of(reader: WireReader, graph: Field, outputs: Sequence[str]) -> Classifier:
    """Reads the nodes of `graph` that make `outputs`.

    Raises:
        WireError: the bytes of a node are no message.
    """
    makers = {node.outputs[0]: node for node in (_node(reader, item) for item in _nodes(reader, graph)) if node.outputs}
    found = Classifier()
    for name in outputs:
        node = makers.get(name)
        if node is not None and node.operator == "ZipMap" and len(node.inputs) == 1 and node.labels:
            found.zip_maps[name] = ZipMap(node.inputs[0], node.labels)
            continue
        seen: set[str] = set()
        while node is not None and node.operator in _PASSING and node.inputs and node.inputs[0] not in seen:
            seen.add(node.inputs[0])
            node = makers.get(node.inputs[0])
        if node is not None and node.operator in _CLASSIFIERS:
            found.rows.add(name)
    return found


def without_zip_maps(data: bytes, zip_maps: Mapping[str, ZipMap], *, has_opset: bool) -> bytes:
    """The model file `data` with a `Cast` in place of each of `zip_maps`, whose output is declared a tensor.

    Args:
        data: A ModelProto that `read_onnx_file` has read.
        zip_maps: By output, as found in it.
        has_opset: Whether it names an opset of ONNX's own operators.
    """
    reader = WireReader(data, noun="file")

    def in_graph(item: Field) -> bytes | None:
        if item.number == 1:
            node = _node(reader, item)
            name = node.outputs[0] if node.outputs else ""
            return _cast(zip_maps[name].source, name) if node.operator == "ZipMap" and name in zip_maps else None
        if item.number == 12:
            name = _text(reader, item, 1)
            return _tensor_value(name, len(zip_maps[name].labels)) if name in zip_maps else None
        return None

    def in_model(item: Field) -> bytes | None:
        return _replaced(reader, data, item.start, item.end, 2, in_graph) if item.number == 7 else None

    model = _replaced(reader, data, 0, len(data), 1, in_model)
    return model if has_opset else model + encoded_field(8, encoded_number(2, _OPSET))


def _replaced(reader: WireReader, data: bytes, start: int, end: int, depth: int, change: Callable[[Field], bytes | None]) -> bytes:
    """A message's bytes, with the payload of each field for which `change` gives another."""
    parts = []
    at = start
    for item in reader.nested_fields(start, end, depth):
        payload = change(item)
        parts.append(data[at : item.end] if payload is None else encoded_field(item.number, payload))
        at = item.end
    return b"".join(parts)


def _cast(source: str, output: str) -> bytes:
    """A NodeProto that casts to FLOAT."""
    names = b"".join(encoded_field(number, text.encode()) for number, text in ((1, source), (2, output), (4, "Cast")))
    return names + encoded_field(5, encoded_field(1, b"to") + encoded_number(3, _FLOAT) + encoded_number(20, _INT))


def _tensor_value(name: str, classes: int) -> bytes:
    """A ValueInfoProto of a FLOAT tensor of any number of rows."""
    shape = encoded_field(1, b"") + encoded_field(1, encoded_number(1, classes))
    tensor = encoded_number(1, _FLOAT) + encoded_field(2, shape)
    return encoded_field(1, name.encode()) + encoded_field(2, encoded_field(1, tensor))


def _nodes(reader: WireReader, graph: Field) -> Iterator[Field]:
    return (item for item in reader.nested_fields(graph.start, graph.end, 2) if item.number == 1)


def _node(reader: WireReader, message: Field) -> _Node:
    if not message.is_message:
        raise WireError(f"a node before byte {message.end} is a number")
    node = _Node()
    attributes = []
    for item in reader.nested_fields(message.start, message.end, 3):
        match item.number:
            case 1:
                node.inputs.append(reader.text(item))
            case 2:
                node.outputs.append(reader.text(item))
            case 4:
                node.operator = reader.text(item)
            case 5:
                attributes.append(item)
    if node.operator == "ZipMap":
        node.labels = tuple(label for item in attributes for label in _labels(reader, item))
    return node


def _labels(reader: WireReader, attribute: Field) -> Iterator[str]:
    name = _text(reader, attribute, 1)
    for item in reader.nested_fields(attribute.start, attribute.end, 4):
        if item.number == 9 and name == "classlabels_strings":
            yield reader.text(item)
        elif item.number == 8 and name == "classlabels_int64s":
            yield from (str(number) for number in reader.numbers(item))


def _text(reader: WireReader, message: Field, number: int) -> str:
    """The last text of that field number; empty where there is none."""
    found = ""
    for item in reader.nested_fields(message.start, message.end, 3):
        if item.number == number:
            found = reader.text(item)
    return found
