"""`poprt.profile`: the modelled cost of a model on the simulated device."""

from stoker_compat.sources import ModelSource, as_model

from poprt.compiler import CompilerOptions
from stoker.backends.ipu.compile.compiler import as_source
from stoker.backends.ipu.compile.summary_report import SummaryReport, summary_report
from stoker.compiler.convert.converter import Converter


class Profiler:
    """The modelled profile of a model with static shapes, converted in FP32 where it is not converted yet."""

    def __init__(self, model: ModelSource, options: CompilerOptions | None = None) -> None:
        self._model = Converter().convert_internal(as_model(model))
        self._options = options or CompilerOptions()

    def report(self) -> SummaryReport:
        """Memory, cycles and times; also of a model that does not fit.

        Raises:
            CompileError: the model cannot be planned.
        """
        return summary_report([as_source(self._model)], self._options.frozen(), batch_sizes=())

    def get_flops(self) -> int:
        """Floating-point operations of its products and convolutions for one batch, two for each multiply-accumulate."""
        return sum(run.flops for graph in self.report().graphs for run in graph.runs)


def get_model_flops(model: ModelSource, verbose: bool = False) -> int:
    """Floating-point operations of a model for one batch; `verbose` also prints them by node."""
    profiler = Profiler(model)
    if verbose:
        for graph in profiler.report().graphs:
            for run in graph.runs:
                print(f"{run.node} ({run.op_type}): {run.flops}")
    return profiler.get_flops()


__all__ = ["Profiler", "get_model_flops"]
