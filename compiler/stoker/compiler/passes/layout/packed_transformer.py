"""The pass `packed_transformer` lets several sequences share a row, instead of padding each one to a full row."""

import json
import logging
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import PACKING
from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.layout.packing_axes import Layout, Role, axis_of, find, plain, roles, roles_in
from stoker.compiler.passes.layout.packing_index import PackSizes
from stoker.compiler.passes.layout.packing_rewrite import PackedGraph
from stoker.compiler.passes.layout.packing_rules import TokenGraph, read_tokens
from stoker.compiler.passes.matching.edges import values_read_by
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.registry import Pass, register
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.passes.simplify import fold_constants

log = logging.getLogger(__name__)

#: Version of the JSON in the metadata.
NOTE_VERSION = 1
#: Default number of sequences per row: the published packed runs have twice as many sequences as rows.
SEQUENCES_PER_ROW = 2
#: Integers up to this value are exact in FP16, which the mask may be converted to.
_EXACT_IN_HALF = 2048

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
_NO_EFFECT = "packed_transformer: %s has no effect on a simulated device"


@register("packed_transformer")
class PackedTransformer(Pass):
    """Makes a transformer over padded rows one over packed rows: each token attends to its own sequence only.

    Inputs [rows, row_length] keep names and shapes. The attention mask now holds the number of each token's sequence in the batch, from 1,
    and 0 where there is no token. Two inputs may be new: `position_ids` [rows, row_length], each token's place in its sequence, if anything
    in the model depends on it; and `unpack_info`, int32 [max_valid_num, 2], (row, offset) of each sequence's first token, if the first
    token of each row was chosen: that is then done for each sequence, so that outputs [rows, ...] become [max_valid_num, ...]. Outputs by
    token keep their rows; `PackRunner` cuts them. Fed so, a packed model gives for each sequence what the padded one gave for it in a row
    of its own; tolerance is rounding.

    Attention is done row by row with a mask between sequences or, with `segment_max_size`, sequence by sequence in
    [max_valid_num, segment_max_size]; only then may a sequence go over the end of a row (`end_to_end`).

    What the runner has to know stands in the metadata under `stoker.packing`, a JSON object: version, rows, row_length, max_valid_num,
    segment_max_size (0: by row), token_inputs, mask_input, position_input, unpack_input (names; empty where there is none), token_outputs,
    sequence_outputs.

    Args:
        max_valid_num: Sequences in a batch at most; by default twice the rows.
        segment_max_size: Tokens of a sequence at most.
        enable_double_batch_unpack: No effect on a simulated device.
        head_pattern: No effect on a simulated device: what follows the choice of the first token is found by what it computes.
        dynamic_groups: Names of inputs whose tokens belong together; by default all of the shape of the first. One group can be packed.
    """

    def __init__(
        self,
        max_valid_num: int | None = None,
        segment_max_size: int | None = None,
        enable_double_batch_unpack: bool = False,
        head_pattern: str | Sequence[str] = (),
        dynamic_groups: Sequence[str] | Sequence[Sequence[str]] = (),
    ) -> None:
        for name, number in (("max_valid_num", max_valid_num), ("segment_max_size", segment_max_size)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise OptionError(f"packed_transformer: {name} is {number!r}; expected a whole number from 1")
        self._max_valid_num, self._segment = max_valid_num, segment_max_size or 0
        self._group = _one_group(dynamic_groups)
        for name, value in (("enable_double_batch_unpack", enable_double_batch_unpack), ("head_pattern", head_pattern)):
            if value:
                log.warning(_NO_EFFECT, name)

    def run(self, model: ir.Model) -> bool:
        if PACKING in model.metadata_props:
            raise PassError("packed_transformer: the model is packed already")
        infer_shapes(model)
        fold_constants(model)
        RemoveUnusedNodesPass()(model)
        infer_shapes(model)
        graph = model.graph
        group = self._inputs(graph)
        rows, row_length = (static_shape(group[0]) or (0, 0))[:2]
        sizes = PackSizes(rows, row_length, self._max_valid_num or SEQUENCES_PER_ROW * rows, self._segment)
        if sizes.segment > row_length:
            raise OptionError(f"packed_transformer: segment_max_size is {sizes.segment}, a row of the model has {row_length} tokens")
        tokens = read_tokens(graph, {value: _lead(value, rows, row_length) for value in group})
        by_token, by_sequence = _outputs(graph, tokens)
        editor, first = GraphEditor(model), graph[0]
        inputs = _PackingInputs(editor, graph, group, tokens, sizes)
        PackedGraph(
            editor,
            graph,
            tokens,
            sizes,
            first=first,
            numbers=inputs.numbers,
            positions=inputs.position_ids,
            places=inputs.unpack_info,
        ).rewrite()
        inputs.finish()
        model.metadata_props[PACKING] = json.dumps(
            {
                "version": NOTE_VERSION,
                "rows": rows,
                "row_length": row_length,
                "max_valid_num": sizes.sequences,
                "segment_max_size": sizes.segment,
                "token_inputs": [value.name for value in group if value.name not in (inputs.mask_name, inputs.position_name)],
                "mask_input": inputs.mask_name,
                "position_input": inputs.position_name,
                "unpack_input": inputs.unpack_name,
                "token_outputs": by_token,
                "sequence_outputs": by_sequence,
            }
        )
        log.info("packed: up to %d sequences in %d rows of %d tokens", sizes.sequences, rows, row_length)
        return True

    def _inputs(self, graph: ir.Graph) -> list[ir.Value]:
        """Returns the inputs with a value for each token; an integer input is first, if there is one."""
        fed = [value for value in graph.inputs if value.name not in graph.initializers]
        by_name = {value.name: value for value in fed}
        unknown = [name for name in self._group if name not in by_name]
        if unknown:
            raise PassError(f"packed_transformer: the model has no input '{unknown[0]}'; it has {', '.join(map(str, by_name))}")
        candidates = [by_name[name] for name in self._group] or [each for each in fed if len(static_shape(each) or ()) >= 2]
        first = next((each for each in candidates if each.dtype not in _FLOATS and each.dtype is not ir.DataType.BOOL), None)
        first = first or next(iter(candidates), None)
        shape = static_shape(first)
        if first is None or shape is None or len(shape) < 2 or shape[1] < 2:
            seen = ", ".join(f"'{value.name}' {value.shape}" for value in fed) or "none"
            raise PassError(f"packed_transformer: an input [rows, row length] of fixed sizes is needed, such as input_ids; inputs: {seen}")
        group = [first, *(each for each in candidates if each is not first and (static_shape(each) or ())[:2] == shape[:2])]
        if self._group and len(group) < len(self._group):
            raise PassError(f"packed_transformer: the inputs of dynamic_groups have different rows: {', '.join(self._group)}")
        return group


class _PackingInputs:
    """The inputs that distinguish sequences: existing ones, and those that are added on demand."""

    def __init__(self, editor: GraphEditor, graph: ir.Graph, group: Sequence[ir.Value], tokens: TokenGraph, sizes: PackSizes) -> None:
        self._editor = editor
        self._graph = graph
        self._sizes = sizes
        self._layouts = tokens.layouts
        self._first = graph[0]
        self._positions = next((value for value in group if "position" in (value.name or "")), None)
        self._unpack: ir.Value | None = None
        self._made: set[ir.Value] = set()
        self.mask_name = ""
        self.numbers = self._numbered(_mask_of(group, tokens))

    @property
    def position_name(self) -> str:
        """Returns the name of the input of positions, if there is one."""
        return "" if self._positions is None else str(self._positions.name)

    @property
    def unpack_name(self) -> str:
        """Returns the name of the input of sequence starts, if it was needed."""
        return "" if self._unpack is None else str(self._unpack.name)

    def position_ids(self) -> ir.Value:
        """Returns the position of each token in its sequence."""
        if self._positions is None:
            self._positions = self._input("position_ids", [self._sizes.rows, self._sizes.row_length])
        return self._positions

    def unpack_info(self) -> ir.Value:
        """Returns row and offset of each sequence."""
        if self._unpack is None:
            self._unpack = self._input("unpack_info", [self._sizes.sequences, 2])
        return self._unpack

    def finish(self) -> None:
        """Removes nodes whose outputs are unused."""
        self._editor.remove_dead(self.numbers.producer())
        if self.numbers in self._made and not self.numbers.uses():
            self._graph.inputs.remove(self.numbers)
            self.mask_name = ""

    def _input(self, name: str, shape: Sequence[int]) -> ir.Value:
        value = ir.Value(name=self._editor.fresh_name(name), type=ir.TensorType(ir.DataType.INT32), shape=ir.Shape(shape))
        self._graph.inputs.append(value)
        self._made.add(value)
        return value

    def _numbered(self, mask: ir.Value | None) -> ir.Value:
        """Returns the mask as sequence numbers, int32; existing readers get 1 and 0 as before."""
        if mask is None:
            mask = self._input("attention_mask", [self._sizes.rows, self._sizes.row_length])
            self.mask_name = str(mask.name)
            return mask
        self.mask_name = str(mask.name)
        if mask.dtype in _FLOATS and self._sizes.sequences > _EXACT_IN_HALF:
            raise PassError(
                f"packed_transformer: input '{mask.name}' is {mask.dtype}, which counts {_EXACT_IN_HALF} sequences at most in FP16; "
                f"max_valid_num is {self._sizes.sequences}"
            )
        readers = list(mask.uses())
        name = f"{mask.name}/is_token"
        if mask.dtype is ir.DataType.BOOL:
            mask.type = ir.TensorType(ir.DataType.INT32)
            is_token = self._editor.insert(
                self._first, "Cast", [mask], attributes={"to": ir.DataType.BOOL.value}, name=name, like=mask, dtype=ir.DataType.BOOL
            )
        else:
            dtype = (mask.dtype or ir.DataType.INT32).numpy()
            one = self._editor.constant(self._first, np.ones((), dtype), f"{mask.name}/one")
            is_token = self._editor.insert(self._first, "Min", [mask, one], name=name, like=mask)
        self._layouts[is_token] = self._layouts[mask]
        for use in readers:
            use.node.replace_input_with(use.idx, is_token)
        if mask.dtype is ir.DataType.INT32:
            return mask  # as it is, or as it became
        return self._editor.insert(
            self._first,
            "Cast",
            [mask],
            attributes={"to": ir.DataType.INT32.value},
            name=f"{mask.name}/numbers",
            like=mask,
            dtype=ir.DataType.INT32,
        )


def _one_group(groups: Sequence[str] | Sequence[Sequence[str]]) -> tuple[str, ...]:
    if isinstance(groups, str):
        groups = [name.strip() for name in groups.split(",") if name.strip()]
    nested = [list(group) for group in groups if not isinstance(group, str)]
    if len(nested) > 1:
        raise OptionError(f"packed_transformer: dynamic_groups has {len(nested)} groups; one group of inputs can be packed")
    return tuple(nested[0]) if nested else tuple(str(name) for name in groups)


def _lead(value: ir.Value, rows: int, row_length: int) -> Layout:
    return (axis_of(Role.ROW, rows), axis_of(Role.TOKEN, row_length), *plain((static_shape(value) or ())[2:]))


def _mask_of(group: Sequence[ir.Value], tokens: TokenGraph) -> ir.Value | None:
    """The input that meets scores as keys and is the only one to do so; else the one with `mask` in its name."""
    met: set[ir.Value] = set()
    for node, number in tokens.keyed:
        waiting = [node.inputs[number]]
        seen: set[ir.Value] = set()
        while waiting:
            value = waiting.pop()
            if value is None or value in seen:
                continue
            seen.add(value)
            producer = value.producer()
            waiting += values_read_by(producer) if producer is not None else []
        met |= seen & set(group)
    flat = [value for value in group if len(value.shape or ()) == 2]
    if len(met) == 1 and (only := met.pop()) in flat:
        return only
    return next((value for value in flat if "mask" in (value.name or "")), None)


def _outputs(graph: ir.Graph, tokens: TokenGraph) -> tuple[list[str], list[str]]:
    """Returns the names of the outputs per token and per sequence.

    Raises:
        PassError: an output is neither, or not by rows first.
    """
    by_token: list[str] = []
    by_sequence: list[str] = []
    for output in graph.outputs:
        layout = tokens.layouts.get(output)
        counted = frozenset() if layout is None else roles_in(layout)
        if layout is not None and counted == {Role.ROW, Role.TOKEN} and (find(layout, Role.ROW), find(layout, Role.TOKEN)) == (0, 1):
            by_token.append(str(output.name))
        elif layout is not None and counted == {Role.SEQUENCE} and roles(layout[0]) and find(layout, Role.SEQUENCE) == 0:
            by_sequence.append(str(output.name))
        else:
            found = "nothing that depends on tokens" if layout is None else f"dimensions by {', '.join(sorted(r.value for r in counted))}"
            raise PassError(
                f"packed_transformer: output '{output.name}' {output.shape} has {found}; expected [rows, row length, ...], or what follows "
                "from the first token of each row"
            )
    return by_token, by_sequence
