"""`model_overview`: what a model is made of, in one table."""

import collections
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOverview:
    """Counts of the parts of a model, sub-graphs and functions included.

    Attributes:
        name: Of the main graph.
        opsets: Versions by domain; ONNX's own is the empty one.
        operators: How many nodes of each operator there are, most frequent first; `domain::name` outside ONNX's own domain.
        parameters: Elements of all initialisers.
        parameter_bytes: Their size.
    """

    name: str
    opsets: Mapping[str, int]
    operators: Mapping[str, int]
    parameters: int
    parameter_bytes: int

    @classmethod
    def of(cls, model: ir.Model) -> "ModelOverview":
        """Looks through `model`."""
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
        """For people."""
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        table = Table(title=f"{self.name or 'model'}: opset {opsets}")
        table.add_column("operator")
        table.add_column("nodes", justify="right")
        for operator, count in self.operators.items():
            table.add_row(operator, f"{count:,}")
        table.add_section()
        table.add_row("all nodes", f"{sum(self.operators.values()):,}")
        table.add_row("parameters", f"{self.parameters:,}")
        table.add_row("parameter bytes", f"{self.parameter_bytes:,}")
        return table


@register("model_overview")
class ModelOverviewPass(Pass):
    """Prints how many nodes of each operator there are, and how large the weights are.

    Args:
        console: Where to print; standard output if None.

    Attributes:
        overview: What it saw when it ran last.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self.overview: ModelOverview | None = None

    def run(self, model: ir.Model) -> bool:
        self.overview = ModelOverview.of(model)
        (self._console or Console()).print(self.overview.table())
        return False
