"""Passes that print, check or compare a model, or add or remove outputs."""

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stoker.compiler.check import OutputError, compare_models, error_table
from stoker.compiler.errors import (
    CompileError,
    InvalidResultError,
    NotStaticError,
    OptionError,
    PassError,
    Unsupported,
    UnsupportedOperators,
)
from stoker.compiler.passes.edit import describe, static_shape, traverse_graphs, traverse_nodes
from stoker.compiler.passes.registry import Pass, model_pass, register
from stoker.compiler.passes.shape import fed_inputs
from stoker.compiler.passes.shape_inference import infer_shapes, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOverview:
    """Counts of the parts of a model, sub-graphs and functions included.

    Attributes:
        name: Name of the main graph.
        opsets: Opset versions by domain; the default ONNX domain is the empty text.
        operators: Number of nodes of each operator, most frequent first; `domain::name` outside the default domain.
        parameters: Number of elements of all initialisers.
        parameter_bytes: Size of all initialisers in bytes.
    """

    name: str
    opsets: Mapping[str, int]
    operators: Mapping[str, int]
    parameters: int
    parameter_bytes: int

    @classmethod
    def of(cls, model: ir.Model) -> "ModelOverview":
        """Collects the counts of `model`."""
        operators: collections.Counter[str] = collections.Counter()
        parameters = parameter_bytes = 0
        for graph in traverse_graphs(model):
            operators.update(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in graph)
            for value in graph.initializers.values():
                if value.const_value is not None:
                    parameters += value.const_value.size
                    parameter_bytes += value.const_value.nbytes
        ordered = dict(sorted(operators.items(), key=lambda each: (-each[1], each[0])))
        return cls(
            name=model.graph.name or "",
            opsets=dict(model.opset_imports),
            operators=ordered,
            parameters=parameters,
            parameter_bytes=parameter_bytes,
        )

    def table(self) -> Table:
        """Returns the rows of the printed table."""
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        table = Table(title=Text(f"{self.name or 'model'}: opset {opsets}"))
        table.add_column("operator")
        table.add_column("nodes", justify="right")
        for operator, count in self.operators.items():
            table.add_row(Text(operator), f"{count:,}")
        table.add_section()
        table.add_row("all nodes", f"{sum(self.operators.values()):,}")
        table.add_row("parameters", f"{self.parameters:,}")
        table.add_row("parameter bytes", f"{self.parameter_bytes:,}")
        return table


@register("model_overview")
class ModelOverviewPass(Pass):
    """Prints the number of nodes of each operator and the size of the weights.

    Args:
        console: Where to print; standard output if None.

    Attributes:
        overview: Counts of the last run.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self.overview: ModelOverview | None = None

    def run(self, model: ir.Model) -> bool:
        self.overview = ModelOverview.of(model)
        (self._console or Console()).print(self.overview.table())
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class IoInfo:
    """One input or output of the model.

    Attributes:
        name: Tensor name.
        is_input: Whether it is an input.
        dtype: Element type under its ONNX name; `?` if undeclared.
        shape: Declared shape, such as `[n,3]`; `?` if undeclared.
        bytes: Size in bytes; None if a dimension is variable.
    """

    name: str
    is_input: bool
    dtype: str
    shape: str
    bytes: int | None

    @classmethod
    def of(cls, value: ir.Value, *, is_input: bool) -> "IoInfo":
        """Reads the declaration of `value`."""
        shape = static_shape(value)
        dtype = value.dtype
        known = shape is not None and dtype is not None and dtype != ir.DataType.STRING
        return cls(
            name=str(value.name),
            is_input=is_input,
            dtype="?" if dtype is None else dtype.name,
            shape="?" if value.shape is None else str(value.shape),
            bytes=int(prod(shape) * dtype.itemsize) if known and shape is not None and dtype is not None else None,
        )


def io_info(model: ir.Model) -> list[IoInfo]:
    """Returns the inputs that must be fed, then the outputs, each in graph order."""
    inputs = [IoInfo.of(value, is_input=True) for value in fed_inputs(model).values()]
    return inputs + [IoInfo.of(value, is_input=False) for value in model.graph.outputs]


@register("model_io_info_stat")
class ModelIoInfoStat(Pass):
    """Prints name, element type, shape and size of the inputs and outputs, which determine the cost of host IO and the IO tiles' memory.

    Args:
        console: Where to print; standard output if None.

    Attributes:
        tensors: Inputs and outputs of the last run.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self.tensors: list[IoInfo] = []

    def run(self, model: ir.Model) -> bool:
        self.tensors = io_info(model)
        table = Table("", "name", "type", "shape", title="inputs and outputs")
        table.add_column("bytes", justify="right")
        for is_input, kind in ((True, "input"), (False, "output")):
            sizes = [each.bytes for each in self.tensors if each.is_input == is_input]
            for each in self.tensors:
                if each.is_input == is_input:
                    size = "?" if each.bytes is None else f"{each.bytes:,}"
                    # Rich would read a shape such as [b,3] as markup.
                    table.add_row(kind, Text(each.name), each.dtype, Text(each.shape), size)
            total = None if None in sizes else sum(size for size in sizes if size is not None)
            table.add_row(f"all {kind}s", "", "", "", "?" if total is None else f"{total:,}", end_section=True)
        (self._console or Console()).print(table)
        return False


@model_pass()
def check_unsupported_attribute(model: ir.Model) -> bool:
    """Rejects nodes with unknown attributes, attributes of a wrong type, or training attributes; the error lists all of them.

    Operators outside ONNX's domains are not checked, because their schemas are unknown.
    """
    opset = model.opset_imports.get("", 1)
    found = [
        Unsupported(str(node.name or node.outputs[0].name), node.op_type, reason)
        for node in traverse_nodes(model)
        if node.domain == ""
        for reason in _objections(node, opset)
    ]
    if found:
        raise UnsupportedOperators("inference", found)
    return False


def _objections(node: ir.Node, opset: int) -> list[str]:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return [f"opset {opset} has no such operator"]
    objections = []
    for name, attribute in node.attributes.items():
        formal = schema.attributes.get(name)
        if formal is None:
            objections.append(f"opset {opset} gives it no attribute '{name}'")
        elif (expected := str(formal.type).rpartition(".")[2]) != attribute.type.name:
            objections.append(f"attribute '{name}' is {attribute.type.name} instead of {expected}")
        elif name == "training_mode" and not attribute.is_ref() and attribute.as_int():
            objections.append("attribute 'training_mode' is 1; only inference is compiled")
    required = [name for name, formal in schema.attributes.items() if formal.required]
    return objections + [f"attribute '{name}' is missing" for name in required if name not in node.attributes]


@register("check_with_fake_data")
class CheckWithFakeData(Pass):
    """Runs the model and its source on ONNX Runtime with the same random data, and prints the error of each output.

    Args:
        source: The model before the passes; all its outputs that still exist are compared.
        seed: Seed of the random data.
        console: Where to print; standard output if None.

    Attributes:
        errors: The error figures of the last run, by output: mse, mae, max and cosine.
    """

    def __init__(self, source: onnx.ModelProto | None = None, seed: int = 0, console: Console | None = None) -> None:
        self._source, self._seed, self._console = source, seed, console
        self.errors: list[OutputError] = []

    def run(self, model: ir.Model) -> bool:
        if self._source is None:
            raise OptionError("nothing to compare with: give the model before conversion as `source` (on the command line: --check)")
        self.errors = compare_models(self._source, ir.to_proto(model), seed=self._seed)
        headings, rows = error_table(self.errors)
        table = Table(*headings, title="against the source model on ONNX Runtime")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        (self._console or Console()).print(table)
        return False


#: Operators whose outputs have sizes that depend on the values of their inputs.
_SIZED_BY_VALUES = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})


@register("final_check")
class FinalCheck(Pass):
    """Rejects a model that ONNX finds invalid, that has inputs or outputs of variable shape, or whose nodes share names.

    The error lists all reasons.
    """

    def __init__(self, *, is_static: bool = True) -> None:
        """Sets which shapes to check.

        Args:
            is_static: Whether inputs and outputs must have static shapes.
        """
        self.is_static = is_static

    def run(self, model: ir.Model) -> bool:
        problems, is_valid = [], True
        try:
            verify(model, "after all passes")
        except PassError as error:
            problems.append(str(error))
            is_valid = False
        borders = (("input", fed_inputs(model).values()), ("output", model.graph.outputs))
        for kind, values in borders if self.is_static else ():
            problems += [
                f"{kind} '{value.name}' is of shape {'unknown' if value.shape is None else value.shape}, not static"
                for value in values
                if static_shape(value) is None
            ]
        if self.is_static:
            doubtful = _sources_of_doubt(model)
            problems += [f"{describe(node)} gives a shape that is not known{_reason_of_doubt(node)}" for node in doubtful]
        names = collections.Counter(node.name for node in traverse_nodes(model) if node.name)
        problems += [f"{count} nodes are named '{name}'" for name, count in names.items() if count > 1]
        if problems:
            text = "; ".join(problems)
            if self.is_static and any(static_shape(value) is None for value in model.graph.outputs):
                raise NotStaticError(f"pass 'final_check': {text}", model)
            raise CompileError(text) if is_valid else InvalidResultError(f"pass 'final_check': {text}", model)
        return False


def _reason_of_doubt(node: ir.Node) -> str:
    if node.domain:
        return f": operators of domain '{node.domain}' are not known; custom_shape_inference names the file that says their shapes"
    if node.op_type in _SIZED_BY_VALUES:
        return ": it depends on values, and the device runs static shapes"
    return " from the shapes of its inputs"


def _sources_of_doubt(model: ir.Model) -> list[ir.Node]:
    """Returns nodes of the main graph that lead to outputs of unknown shape although the shapes of their inputs are known."""
    waiting = [value.producer() for value in model.graph.outputs if static_shape(value) is None]
    found: dict[ir.Node, None] = {}
    seen: set[ir.Node] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        unknown = [value for value in node.inputs if value is not None and static_shape(value) is None]
        waiting += [value.producer() for value in unknown]
        if not unknown:
            found[node] = None
    return list(found)


@register("add_checkpoints")
class AddCheckpoints(Pass):
    """Makes inner tensors of the main graph additional outputs, after the existing outputs.

    Args:
        checkpoints: Names of tensors that nodes of the main graph compute.
    """

    def __init__(self, checkpoints: Sequence[str] = ()) -> None:
        self._names = list(dict.fromkeys(checkpoints))

    def run(self, model: ir.Model) -> bool:
        made = {output.name: output for node in model.graph for output in node.outputs if output.name}
        missing = [name for name in self._names if name not in made]
        if missing:
            raise PassError(f"no node of the main graph makes {', '.join(repr(name) for name in missing)}")
        added = [made[name] for name in self._names if not made[name].is_graph_output()]
        if any(value.type is None for value in added):
            infer_shapes(model)
        if untyped := [value.name for value in added if value.type is None]:
            raise PassError(f"the element type of {', '.join(repr(name) for name in untyped)} is not known, as outputs need it")
        model.graph.outputs.extend(added)
        return bool(added)


@register("remove_outputs")
class RemoveOutputs(Pass):
    """Removes outputs of the model, with the nodes and weights that only they need. The inputs stay, so callers need no change.

    Args:
        remove_outputs: Names of outputs; at least one output must remain.
    """

    def __init__(self, remove_outputs: Sequence[str] = ()) -> None:
        self._names = set(remove_outputs)

    def run(self, model: ir.Model) -> bool:
        outputs = list(model.graph.outputs)
        names = [output.name for output in outputs]
        if unknown := sorted(self._names - set(map(str, names))):
            raise PassError(f"there is no output {', '.join(map(repr, unknown))}; the outputs are {', '.join(map(str, names))}")
        kept = [output for output in outputs if output.name not in self._names]
        if not kept:
            raise PassError("no output would be left")
        if len(kept) == len(outputs):
            return False
        model.graph.outputs.clear()
        model.graph.outputs.extend(kept)
        RemoveUnusedNodesPass()(model)
        return True
