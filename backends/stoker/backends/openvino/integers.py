"""Finds the operators of a model whose integers OpenVINO's CPU plugin does not compute exactly.

The plugin computes many integer operators in single precision, whose whole numbers end at 2**24, lets 8-bit arithmetic saturate where ONNX
says that it wraps around, and clamps 64-bit constants to 32 bits. Values that stay small by their nature do not suffer from that: sizes and
shapes, indices that an operator finds, masks made from comparisons. So this follows every value from where it begins. Only what depends on
the integers (or rounded floats) that a request holds, or on large constants, is held to the operators that are exact.

The list of exact operators is measured: tests compare operators and element types with ONNX Runtime, release by release.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

import openvino as ov

#: Whole numbers up to here are exact in single precision.
EXACT_BELOW = 1 << 24
_INT32_BELOW = 1 << 31

#: Element types by the plugin's way with them; bool is none of them.
_NARROW = frozenset({"i4", "u4", "i8", "u8"})
_WIDE = frozenset({"i16", "u16", "i32", "u32", "i64", "u64"})

#: Operators that move elements, or only compare what arrived with itself: exact for every integer.
_MOVING = frozenset({
    "BatchToSpace", "Broadcast", "Concat", "Convert", "ConvertLike", "DepthToSpace", "EmbeddingBagOffsetsSum", "ExtractImagePatches",
    "Gather", "GatherElements", "GatherND", "GatherTree", "Identity", "OneHot", "Pad", "Reshape", "Result", "Reverse", "ReverseSequence",
    "Roll", "ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate", "ShuffleChannels", "Slice", "SpaceToBatch",
    "SpaceToDepth", "Split", "Squeeze", "StridedSlice", "Tile", "TopK", "Transpose", "Unique", "Unsqueeze", "VariadicSplit",
})  # fmt: skip
#: Operators whose results do not grow with the values they look at: sizes, places, truth values.
_SETTLING = frozenset({"NonZero", "ShapeOf", "Rank"})
#: Compared in single precision where other elementwise operators follow: right only against a number that is exact there.
_COMPARING = frozenset({"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"})
_LIMITING = frozenset({"Maximum", "Minimum"})
_BITWISE = frozenset({"BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"})
#: Arithmetic that is exact in 32 bits. Compared or limited afterwards it is computed in single precision together with that.
_ARITHMETIC = frozenset({"Abs", "Add", "CumSum", "Multiply", "Negative", "Range", "Sign", "Subtract"})
_MOVING_HUGE = (_MOVING | _SETTLING) - {"Result"}
_EXACT_IN_8_BITS = _MOVING | _SETTLING | _COMPARING | _LIMITING | _BITWISE | {"Select"}
_EXACT_IN_32_BITS = _MOVING | _SETTLING | _ARITHMETIC | _BITWISE
#: Sums of products. Of 8-bit values they are what quantised models are made of: the plugin's own kernels, or rounded to 24 bits.
_PRODUCTS = frozenset({"Convolution", "GroupConvolution", "MatMul"})
#: Inputs from here on say which elements are taken.
_CHOOSING_FROM: Mapping[str, int] = {
    "Gather": 1, "GatherElements": 1, "GatherND": 1, "Slice": 1, "StridedSlice": 1, "VariadicSplit": 1, "Split": 1, "Reshape": 1, "Tile": 1,
    "TopK": 1, "Transpose": 1, "Squeeze": 1, "Unsqueeze": 1, "Broadcast": 1,
}  # fmt: skip
#: Inputs that OpenVINO bounds by the size of the tensor: begin, end and step. Exporters write INT64_MAX for "to the end".
_BOUNDED_PORTS: Mapping[str, int] = {"Slice": 1, "StridedSlice": 1}
#: The input that holds places, by operator.
_INDEX_PORTS: Mapping[str, int] = {"Gather": 1, "GatherElements": 1, "GatherND": 1}
#: The output of `TopK` that holds places.
_INDEX_OUTPUT = 1


class _Level(IntEnum):
    """The inputs that a value depends on, and the operators between."""

    #: Shapes, places, truth values and constants below 2**24: every computation with them is exact.
    SMALL = 0
    #: Values of 8 bits in a wider type, less a zero point.
    EIGHT_BITS = 1
    #: Values of a request, unchanged.
    GIVEN = 2
    #: Values computed from those of a request.
    COMPUTED = 3
    #: A constant beyond 32 bits.
    HUGE = 4


def inexact_integers(model: ov.Model) -> list[str]:
    """The operators that would compute integers of a request inexactly, each as `ReduceSum 'name' in i64`; empty: there are none."""
    return list(dict.fromkeys(_Walk(model, {}).found()))


class _Walk:
    """One pass over a graph in the order of computation."""

    def __init__(self, model: ov.Model, given: Mapping[str, _Level]) -> None:
        """`given`: levels of the graph's parameters by their unique names, where it is a body; others are `GIVEN`."""
        self._model = model
        self._given = given
        self._levels: dict[tuple[str, int], _Level] = {}

    def found(self) -> Iterator[str]:
        for node in self._model.get_ordered_ops():
            operator = node.get_type_name()
            sources = node.input_values()
            levels = [self._levels[source.get_node().get_name(), source.get_index()] for source in sources]
            yield from self._bodies(node, levels)
            if not _is_exact(operator, sources, levels) and not (operator == "Select" and _is_for_indices_only(node.output(0))):
                kinds = sorted({_kind(source) for source in sources if _kind(source) in _NARROW | _WIDE})
                yield f"{operator} '{node.get_friendly_name()}' in {', '.join(kinds)}"
            for index, output in enumerate(node.outputs()):
                self._levels[node.get_name(), index] = self._level(node, operator, output, sources, levels)

    def _level(self, node: ov.Node, operator: str, output: ov.Output, sources: Sequence[ov.Output], levels: Sequence[_Level]) -> _Level:
        if operator == "Parameter":
            return self._given.get(node.get_name(), _Level.GIVEN)
        if operator == "Constant":
            return _constant_level(node)
        if operator in _SETTLING or (operator == "TopK" and output.get_index() == _INDEX_OUTPUT) or _kind(output) == "boolean":
            return _Level.SMALL
        # Truth values and places choose; they are no part of what is chosen.
        chosen = levels[: _CHOOSING_FROM.get(operator, len(levels))]
        highest = max((level for source, level in zip(sources, chosen, strict=False) if _kind(source) != "boolean"), default=_Level.SMALL)
        if highest is _Level.SMALL or operator in _MOVING:
            is_of_8_bits = operator == "Convert" and _kind(sources[0]) in _NARROW
            return min(highest, _Level.EIGHT_BITS) if is_of_8_bits else highest
        return _Level.EIGHT_BITS if operator == "Subtract" and highest is _Level.EIGHT_BITS else _Level.COMPUTED

    def _bodies(self, node: ov.Node, levels: Sequence[_Level]) -> Iterator[str]:
        bodies = list(bodies_of(node))
        # Whatever goes in may come back in the next turn, computed.
        level = _Level.SMALL if max(levels, default=_Level.SMALL) is _Level.SMALL else _Level.COMPUTED
        for body in bodies:
            yield from _Walk(body, {parameter.get_name(): level for parameter in body.get_parameters()}).found()


def bodies_of(node: ov.Node) -> Iterator[ov.Model]:
    """The graphs that a node holds: `If` has two, `Loop` and `TensorIterator` one, others none."""
    operator = node.get_type_name()
    if operator == "If":
        yield node.get_function(0)
        yield node.get_function(1)
    elif operator in ("Loop", "TensorIterator"):
        yield node.get_function()


def _is_exact(operator: str, sources: Sequence[ov.Output], levels: Sequence[_Level]) -> bool:
    """Whether the plugin computes the integers among the inputs exactly."""
    if operator in ("If", "Loop", "TensorIterator"):
        return _Level.HUGE not in levels
    if all(source.get_node().get_type_name() == "Constant" for source in sources):
        # Computed when the model is compiled, by other code, which is exact.
        return _Level.HUGE not in levels or operator in _MOVING_HUGE
    bounded_from = _BOUNDED_PORTS.get(operator, len(sources))
    return all(
        _is_input_exact(operator, _kind(source), level, levels, is_bounded=index >= bounded_from)
        for index, (source, level) in enumerate(zip(sources, levels, strict=True))
    )


def _is_input_exact(operator: str, kind: str, level: _Level, levels: Sequence[_Level], *, is_bounded: bool) -> bool:
    if level is _Level.HUGE:
        # Moved on, it is met again where it is used; as an output it would be cut.
        return is_bounded or operator in _MOVING_HUGE
    if kind in _NARROW:
        return operator in _EXACT_IN_8_BITS
    if level is _Level.SMALL or kind not in _WIDE or operator in _EXACT_IN_32_BITS:
        return True
    if operator in _COMPARING:
        return max(levels) <= _Level.GIVEN and min(levels) <= _Level.EIGHT_BITS
    return (operator in _LIMITING and level <= _Level.GIVEN) or (operator in _PRODUCTS and level is _Level.EIGHT_BITS)


def _is_for_indices_only(output: ov.Output) -> bool:
    """Whether a value is used for nothing but to look up elements, perhaps moved on the way: a number of 2**24 or more names none.

    Exporters choose position ids this way: those of a padded row are replaced by `Select`.
    """
    ahead, seen = [output], {output.get_node().get_name()}
    while ahead:
        for used in ahead.pop().get_target_inputs():
            node = used.get_node()
            operator = node.get_type_name()
            if operator in _INDEX_PORTS and used.get_index() == _INDEX_PORTS[operator]:
                continue
            if operator == "Result" or operator not in _MOVING:
                return False
            if node.get_name() not in seen:
                seen.add(node.get_name())
                ahead.extend(node.outputs())
    return True


def _constant_level(node: ov.Node) -> _Level:
    if _kind(node.output(0)) not in _WIDE or not node.get_data().size:
        return _Level.SMALL
    values = node.get_data()
    furthest = max(int(values.max()), -int(values.min()))
    if furthest < EXACT_BELOW:
        return _Level.SMALL
    # -2**31 itself is an int32.
    return _Level.HUGE if int(values.max()) >= _INT32_BELOW or int(values.min()) < -_INT32_BELOW else _Level.GIVEN


def _kind(port: ov.Output) -> str:
    kind: str = port.get_element_type().get_type_name()
    return kind
