"""Checks whether the work of an ONNX model depends only on the shapes of its inputs, or also on their values.

A `Loop` whose trip count is an input, or a `Range` to one, takes microseconds for one request and minutes for the next of the same shape,
so measured times do not predict the next batch. Such models must never run inline on the event loop.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.backends.api.wire import Field, WireError, WireReader

#: Stands for an operator whose name, or a name of its tensors, is not UTF-8.
UNREADABLE = "(unreadable)"
#: Operators whose inputs choose a sub-graph or the number of its iterations.
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"})
#: Operators that take the size of what they make, by the places of the inputs that say it (in any set, ONNX Runtime's own too).
_SIZED_BY: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CropAndResize": (3,),
    "DFT": (1,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Tile": (1, 2),
    "Upsample": (1,),
}


@dataclass(slots=True)
class _Node:
    """The relevant fields of a NodeProto."""

    operator: str
    inputs: list[str]
    outputs: list[str]

    def is_open(self, constants: set[str]) -> bool:
        """Whether its work depends on values that are not among `constants`."""
        if self.operator in _CONTROL_FLOW:
            return True
        indices = _SIZED_BY.get(self.operator, ())
        return any(self.inputs[index] not in constants for index in indices if index < len(self.inputs))


def operator_of_open_work(path: Path) -> str | None:
    """The first operator of the file at `path` whose work depends on values that are not fixed in it; None: there is none.

    REQUIRES: `read_onnx_file` takes the file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = WireReader(data, noun="file")
            for item in reader.nested_fields(0, len(data), 1):
                # Where nodes are in a GraphProto and in a FunctionProto, of which a model has any number.
                node_number = {7: 1, 25: 7}.get(item.number)
                if node_number is not None and (found := _first_open(reader, item, node_number)) is not None:
                    return found
    except WireError:
        # Names of nodes are nothing that `read_onnx_file` looks at. An unreadable operator may be any.
        return UNREADABLE
    return None


def _first_open(reader: WireReader, graph: Field, node_number: int) -> str | None:
    nodes: list[_Node] = []
    # An input that is left out has an empty name.
    constants = {""}
    for item in reader.nested_fields(graph.start, graph.end, 2):
        if item.number == node_number:
            node = _node(reader, item)
            if node.operator == "Constant":
                constants.update(node.outputs)
            elif node.operator in _SIZED_BY or node.operator in _CONTROL_FLOW:
                nodes.append(node)
        elif item.number == 5 and node_number == 1:
            constants.update(_texts(reader, item, 8))
    return next((node.operator for node in nodes if node.is_open(constants)), None)


def _node(reader: WireReader, message: Field) -> _Node:
    node = _Node("", [], [])
    for item in reader.nested_fields(message.start, message.end, 3):
        if item.number == 1:
            node.inputs.append(reader.text(item))
        elif item.number == 2:
            node.outputs.append(reader.text(item))
        elif item.number == 4:
            node.operator = reader.text(item)
    return node


def _texts(reader: WireReader, message: Field, number: int) -> Iterator[str]:
    return (reader.text(item) for item in reader.nested_fields(message.start, message.end, 3) if item.number == number)
