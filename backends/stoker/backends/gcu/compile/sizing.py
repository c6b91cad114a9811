"""The GCU cards to size a model for, and the modelled figures of a converted model on one of them, without compiling it."""

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from stoker.backends.gcu.compile.chosen_constants import chosen_constants
from stoker.backends.gcu.compile.compiler import BuildFlag, apply_build_flag, batch_size_of, card_of, checked_graph, clusters_of
from stoker.backends.gcu.compile.cost_model import CODE_BYTES, TIMING_ERROR, graph_cost
from stoker.backends.gcu.compile.limits import with_status
from stoker.backends.gcu.compile.memory import LEAST_BYTES, workspace_bytes
from stoker.backends.gcu.hardware import CARDS
from stoker.backends.gcu.timing import DEFAULT_PIPELINE_DEPTH, copy_time_s
from stoker.backends.simulated.model_error import ModelError, unknown_error
from stoker.compiler.lowering.rebatch import rebatch
from stoker.compiler.lowering.rounding import make_roundings_explicit, serialise
from stoker.compiler.lowering.typed_graph import check_prepared, tensor_facts
from stoker.compiler.options import CompilerOptions
from stoker.compiler.sizing import Estimate, MemoryUse, SizedDevice, SizedModel, factors_of_latency
from stoker.compiler.target import SourceModel


def _bytes_of(value: ir.Value) -> int:
    return tensor_facts(value, f"tensor '{value.name}'").byte_count


def sized_devices() -> Sequence[SizedDevice]:
    """Returns the cards whose times are fitted, because others have no error bar; a copy runs on all clusters of one."""
    return [
        SizedDevice(
            name=each.name,
            unit="card",
            precisions=("fp16", "mixed", "fp32"),
            options={"card": each.name},
            note="no figure is published for fp16 and mixed, so that their error bar is that of fp32",
        )
        for each in CARDS.values()
        if each.is_fitted
    ]


def sizing_options(device: SizedDevice, precision: str) -> Mapping[str, object]:
    """Returns the build flag that makes `precision`."""
    return {**device.options, "build_flag": precision}


class GcuSizedModel(SizedModel):
    """A model on one card. The figures are those of a run including the copies to and from the card."""

    def __init__(self, source: SourceModel, options: CompilerOptions) -> None:
        """Checks the model, and makes its types those of the build flag.

        Raises:
            CompileError: the card cannot run the model, or an option is invalid.
        """
        with with_status():
            self._hardware = card_of(options)
            flag = BuildFlag.of(options.build_flag)
            self._constants = chosen_constants(options)
            self._clusters = clusters_of(options.resource_mode, self._hardware)
            self._graph = checked_graph(source.model, source.outputs, self._hardware)
            self._rows = batch_size_of(self._borders())
            apply_build_flag(self._graph, flag)

    def estimate(self, rows: int | None = None) -> Estimate:
        with with_status():
            if rows is not None and rows != self._rows:
                rebatch(self._graph, axis=0, old=self._rows, new=rows)
                self._rows = rows
            cost = graph_cost(self._graph, batch_size=self._rows, hardware=self._hardware, constants=self._constants.values)
            inputs, outputs = ([_bytes_of(value) for value in values] for values in (self._graph.graph.inputs, self._graph.graph.outputs))
            # The copies of one batch overlap the run of another, as far as the batches in flight allow.
            lanes = [
                sum(copy_time_s(self._hardware, size) for size in inputs),
                cost.run_s[self._clusters - 1],
                sum(copy_time_s(self._hardware, size) for size in outputs),
            ]
            error = self._error()
            return Estimate(
                rows=self._rows,
                latency_s=sum(lanes),
                period_s=max(*lanes, sum(lanes) / DEFAULT_PIPELINE_DEPTH),
                time_factors=factors_of_latency(error),
                error=error,
                memory=self._memory(sum(inputs) + sum(outputs)),
            )

    def _error(self) -> ModelError:
        if not self._constants.is_fitted:
            return self._constants.stated_error
        if not self._hardware.is_fitted:
            return unknown_error(f"nothing is published for the {self._hardware.name}; the constants are the i20's")
        return TIMING_ERROR

    def _borders(self) -> list[ir.Value]:
        return [*self._graph.graph.inputs, *self._graph.graph.outputs]

    def _memory(self, border_bytes: int) -> MemoryUse:
        tensors = {id(value.const_value): value.const_value for value in self._graph.graph.initializers.values()}
        uses = {
            "weights": sum(tensor.nbytes for tensor in tensors.values() if tensor is not None and tensor.nbytes >= LEAST_BYTES),
            "workspace": workspace_bytes(self._graph),
            "buffers": border_bytes,
            "code": CODE_BYTES,
        }
        return MemoryUse(place="HBM of a card", by_category=uses, capacity_bytes=self._hardware.hbm_bytes)


def lowered(source: SourceModel, options: CompilerOptions) -> onnx.ModelProto:
    """Returns the graph that the simulated card computes, with every rounding explicit.

    Raises:
        CompileError: the card cannot run the model.
    """
    with with_status():
        graph = checked_graph(source.model, source.outputs, card_of(options))
        apply_build_flag(graph, BuildFlag.of(options.build_flag))
        make_roundings_explicit(graph)
        check_prepared(graph, source.name)
        return onnx.load_model_from_string(serialise(graph))
