"""One compiled batch size: a converted model, checked against the device, costed and lowered."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from stoker.backends.api.tensor import DataType
from stoker.backends.gcu.compile.build_options import BuildFlag, apply_build_flag
from stoker.backends.gcu.compile.cost_model import CostConstants, GraphCost, graph_cost
from stoker.backends.gcu.compile.limits import GcuCompileError, VendorStatus, check_borders, check_supported
from stoker.backends.gcu.compile.memory import workspace_bytes
from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.gcu.program import CompiledBatch, GcuTensor
from stoker.compiler.errors import ShapeError
from stoker.compiler.lowering.rounding import make_roundings_explicit, serialise
from stoker.compiler.lowering.typed_graph import check_output_shapes, check_prepared, static_shape, typed_graph


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGraph:
    """The engine for one batch size, before its weights are taken out.

    Attributes:
        batch_size: Samples of a run.
        model: The lowered graph.
        inputs, outputs: Of the engine, without the batch.
        cost: Modelled.
        workspace_bytes: HBM for intermediate values.
    """

    batch_size: int
    model: ir.Model
    inputs: tuple[GcuTensor, ...]
    outputs: tuple[GcuTensor, ...]
    cost: GraphCost
    workspace_bytes: int

    def compiled(self) -> CompiledBatch:
        """As it goes into the executable; the weights must have been taken out of `model` before."""
        return CompiledBatch(
            batch_size=self.batch_size,
            onnx=serialise(self.model),
            workspace_bytes=self.workspace_bytes,
            flops=self.cost.flops,
            hbm_traffic_bytes=self.cost.hbm_bytes,
            run_s=self.cost.run_s,
        )


def batch_graph(
    model: onnx.ModelProto,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    flag: BuildFlag,
    hardware: GcuHardware,
    constants: CostConstants,
) -> BatchGraph:
    """Checks, costs and lowers one converted model.

    Args:
        model: With static shapes; it stays as it is.
        inputs: Its inputs in the order that the engine has them; those not named follow.
        outputs: The outputs wanted; empty for all.
        flag: What to compute in.
        hardware: The card.
        constants: Of the cost model.

    Raises:
        CompileError: a limit of the device is exceeded; the text names nodes and tensors.
    """
    graph = typed_graph(model, tuple(outputs))
    check_borders(graph)
    _check_dims(graph, hardware)
    check_supported(graph, hardware)
    check_output_shapes(graph)
    positions = {name: at for at, name in enumerate(inputs)}
    ordered = sorted(graph.graph.inputs, key=lambda value: positions.get(value.name or "", len(positions)))
    batch_size = _batch_size([*ordered, *graph.graph.outputs])
    apply_build_flag(graph, flag)
    cost = graph_cost(graph, batch_size=batch_size, hardware=hardware, constants=constants)
    workspace = workspace_bytes(graph)
    engine_inputs = tuple(_tensor(value) for value in ordered)
    engine_outputs = tuple(_tensor(value) for value in graph.graph.outputs)
    make_roundings_explicit(graph)
    check_prepared(graph, model.graph.name)
    return BatchGraph(
        batch_size=batch_size, model=graph, inputs=engine_inputs, outputs=engine_outputs, cost=cost, workspace_bytes=workspace
    )


def _batch_size(values: Sequence[ir.Value]) -> int:
    """The size of dimension 0, which all inputs and outputs of an engine share.

    Raises:
        ShapeError: they do not share one; the text lists them.
    """
    sizes = {str(value.name): static_shape(value)[:1] for value in values}
    found = set(sizes.values())
    if len(found) == 1 and (only := found.pop()) and only[0] > 0:
        return only[0]
    listed = ", ".join(f"'{name}' {f'has {size[0]}' if size else 'is a scalar'}" for name, size in sizes.items())
    raise ShapeError(f"dimension 0 of every input and output is the batch on the GCU and must be of one size, but {listed}")


def _check_dims(model: ir.Model, hardware: GcuHardware) -> None:
    for role, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        for value in values:
            if value.shape is not None and len(value.shape) > hardware.max_dims:
                raise GcuCompileError(
                    f"{role} '{value.name}' has {len(value.shape)} dimensions; the device has at most {hardware.max_dims}",
                    VendorStatus.UNSUPPORTED_MODEL,
                )


def _tensor(value: ir.Value) -> GcuTensor:
    assert value.dtype is not None  # check_borders
    dtype = next(each for each in DataType if not each.is_bytes and each is not DataType.BF16 and each.numpy == value.dtype.numpy())
    return GcuTensor(value.name or "", dtype, static_shape(value)[1:])
