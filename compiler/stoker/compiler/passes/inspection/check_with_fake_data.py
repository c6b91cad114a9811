"""`check_with_fake_data`: a model beside the one it was made from, on ONNX Runtime and random data."""

import onnx
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from stoker.compiler.check import OutputError, compare_models, error_table
from stoker.compiler.errors import OptionError
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("check_with_fake_data")
class CheckWithFakeData(Pass):
    """Runs the model and its source on ONNX Runtime with the same random data, and prints how far each output is off.

    Args:
        source: The model before the passes; all its outputs that still exist are compared.
        seed: Of the random data.
        console: Where to print; standard output if None.

    Attributes:
        errors: The figures of the last run, by output: mse, mae, max and cosine.
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
            table.add_row(*row)
        (self._console or Console()).print(table)
        return False
