"""Compiles a whole executable: one graph for each batch size, with shared weights, within the card's limits.

Build options: the build flag sets the data type of computations, `resource_mode` the number of clusters an executable is meant for. Inputs
and outputs of the engine keep the types of the model, whatever the flag.

| flag | TopsInference | what is FLOAT16 |
|---|---|---|
| `fp32` | `KDEFAULT` | only what is FLOAT16 in the model |
| `fp16` | `KFP16` | everything that can be |
| `mixed` | `KFP16_MIX` | Conv, ConvTranspose, Gemm and MatMul with their weights |

With `mixed`, all other operators stay FLOAT, such as Softmax, normalisations, reductions and activations, because sums and powers lose
accuracy or exceed FLOAT16's range. Matrix products and convolutions take most of the time.

`resource_mode`: the number of clusters that an executable is meant to run on. TopsInference takes it as a key of `set_compile_options`; the
values that its compiler accepts are not published. Here it is a number of clusters, `<n>c` or `<n>`, or empty for all. The latency and
throughput in the summary are modelled for this number. The executable runs on any number of clusters.
"""

import dataclasses
import enum
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from stoker.backends.api.nearest import did_you_mean
from stoker.backends.api.tensor import DataType
from stoker.backends.gcu.compile.chosen_constants import chosen_constants
from stoker.backends.gcu.compile.cost_model import CostConstants, GraphCost, graph_cost
from stoker.backends.gcu.compile.limits import GcuCompileError, VendorStatus, check_borders, check_supported
from stoker.backends.gcu.compile.memory import SharedWeights, check_fit, share_weights, workspace_bytes
from stoker.backends.gcu.hardware import CARD_NAMES, CARDS, GcuHardware
from stoker.backends.gcu.program import CompiledBatch, GcuExecutable, GcuTensor
from stoker.backends.simulated.numerics import PADDED_ON_HOST
from stoker.compiler.convert.drift_check import check_lowered, is_compared
from stoker.compiler.errors import OptionError, ShapeError
from stoker.compiler.lowering.rounding import make_roundings_explicit, serialise
from stoker.compiler.lowering.typed_graph import check_output_shapes, check_prepared, static_shape, typed_graph
from stoker.compiler.lowering.variable_rows import with_variable_rows
from stoker.compiler.options import CompilerOptions
from stoker.compiler.passes.precision import FloatToHalf, FloatToMixed
from stoker.compiler.target import SourceModel


class BuildFlag(enum.Enum):
    """The data type that an engine computes in."""

    FP32 = "fp32"
    FP16 = "fp16"
    MIXED = "mixed"

    @classmethod
    def of(cls, text: str) -> "BuildFlag":
        """Returns the flag that `text` names by Stoker's or the vendor's name.

        Raises: OptionError: there is no such flag; the text names the nearest one.
        """
        wanted = text.strip()
        found = _NAMES.get(wanted.lower())
        if found is None:
            known = [each.value for each in cls]
            raise OptionError(f"build_flag: there is no '{text}'{did_you_mean(wanted.lower(), known)}; expected {', '.join(known)}")
        return cls(found)


#: Includes the vendor's names and the spellings of Adlik's requests.
_NAMES = {
    "": "fp32", "fp32": "fp32", "kdefault": "fp32", "default": "fp32",
    "fp16": "fp16", "kfp16": "fp16",
    "mixed": "mixed", "mix": "mixed", "kfp16_mix": "mixed", "fp16_mix": "mixed",
}  # fmt: skip


def apply_build_flag(model: ir.Model, flag: BuildFlag) -> None:
    """Changes the types of values inside `model` in place. REQUIRES: all values of `model` have types."""
    if flag is BuildFlag.FP16:
        FloatToHalf(keep_io_types=True).run(model)
    elif flag is BuildFlag.MIXED:
        FloatToMixed().run(model)


def card_of(options: CompilerOptions) -> GcuHardware:
    """Returns the card that is compiled for.

    Raises:
        OptionError: there is no such card; the text names the nearest one.
    """
    found = CARDS.get(options.card.strip().lower())
    if found is None:
        raise OptionError(f"card: there is no '{options.card}'{did_you_mean(options.card, CARD_NAMES)}; expected {', '.join(CARD_NAMES)}")
    return found


def clusters_of(resource_mode: str, hardware: GcuHardware) -> int:
    """Returns the number of clusters that `resource_mode` names.

    Raises:
        OptionError: it is not a number of clusters that the card has.
    """
    text = resource_mode.strip().lower()
    if text in ("", "default", "all"):
        return hardware.clusters
    number = text.removesuffix("c")
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= hardware.clusters):
        raise OptionError(
            f"resource_mode is '{resource_mode}': expected a number of clusters from 1 to {hardware.clusters}, such as '1c', or 'all'"
        )
    return int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGraph:
    """The engine for one batch size, before the shared weights are moved out of its graph.

    Attributes:
        batch_size: Samples of a run.
        model: The lowered graph.
        inputs, outputs: The engine's tensors, without the batch dimension.
        cost: The modelled cost of a run.
        workspace_bytes: HBM for intermediate values.
    """

    batch_size: int
    model: ir.Model
    inputs: tuple[GcuTensor, ...]
    outputs: tuple[GcuTensor, ...]
    cost: GraphCost
    workspace_bytes: int

    def compiled(self) -> CompiledBatch:
        """The batch as the executable stores it. REQUIRES: the shared weights were moved out of `model`."""
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
        model: A model with static shapes. It is not changed.
        inputs: Names of inputs in the engine's order. Inputs that are not named follow.
        outputs: The outputs wanted; empty for all.
        flag: The data type of computations.
        hardware: The card.
        constants: Of the cost model.

    Raises:
        CompileError: a limit of the device is exceeded; the text names nodes and tensors.
    """
    graph = checked_graph(model, outputs, hardware)
    positions = {name: at for at, name in enumerate(inputs)}
    ordered = sorted(graph.graph.inputs, key=lambda value: positions.get(value.name or "", len(positions)))
    batch_size = batch_size_of([*ordered, *graph.graph.outputs])
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


def checked_graph(model: onnx.ModelProto, outputs: Sequence[str], hardware: GcuHardware) -> ir.Model:
    """Returns a copy of a converted model with all types and shapes inferred. Checks that `hardware` can run it.

    Raises:
        CompileError: a limit of the device is exceeded; the text names nodes and tensors.
    """
    graph = typed_graph(model, tuple(outputs))
    check_borders(graph)
    _check_dims(graph, hardware)
    check_supported(graph, hardware)
    check_output_shapes(graph)
    return graph


def batch_size_of(values: Sequence[ir.Value]) -> int:
    """Returns the size of dimension 0, which all inputs and outputs of an engine share.

    Raises:
        ShapeError: the sizes differ; the text lists them.
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


def compile_source(source: SourceModel, options: CompilerOptions, *, constants: CostConstants | None = None) -> GcuExecutable:
    """Compiles one converted model, for each of its batch sizes.

    Args:
        source: The model with static shapes. `source.batches` holds it for several batch sizes.
        options: `build_flag`, `resource_mode`.
        constants: Of the cost model; None: those that `options` select.

    Raises:
        OptionError: an option is unknown.
        ShapeError: a size is not known, or dimension 0 is not the batch.
        CheckError: an output in FP16 differs more from the model's than that type explains.
        GcuUnsupportedOperators: naming every node that the device cannot run.
        CompileError: the model exceeds another limit of the device.
    """
    flag = BuildFlag.of(options.build_flag)
    hardware = card_of(options)
    clusters = clusters_of(options.resource_mode, hardware)
    chosen = chosen_constants(options)
    if source.custom_libraries:
        raise OptionError("custom_library_so_paths: the GCU has no custom operators")
    models = list(source.batches) or [source.model]
    compiled = [
        (
            batch_graph(
                model, inputs=source.inputs, outputs=source.outputs, flag=flag, hardware=hardware, constants=constants or chosen.values
            ),
            model,
        )
        for model in models
    ]
    graphs = sorted((graph for graph, _ in compiled), key=lambda graph: graph.batch_size)
    _check_agreement(graphs)
    if flag is not BuildFlag.FP32:
        sizes = [graph.batch_size for graph in graphs]
        for graph, model in compiled:
            if is_compared(graph.batch_size, sizes):
                check_lowered(model, ir.to_proto(graph.model), "fp16", allow_drift=source.allow_drift)
    weights = share_weights([graph.model for graph in graphs])
    batches = tuple(graph.compiled() for graph in graphs)
    executable = GcuExecutable(
        name=source.name,
        card=hardware.name,
        precision=flag.value,
        inputs=graphs[0].inputs,
        outputs=graphs[0].outputs,
        batches=batches,
        weights=weights.arrays,
        attributes={
            "compiler": "stoker",
            "simulated": "true",
            "build_flag": flag.value,
            "resource_mode": options.resource_mode,
            "clusters": str(clusters),
            **({} if chosen.is_fitted else {"cost_constants": chosen.source}),
            **({} if hardware.is_fitted else {"times": "unfitted for this card"}),
            "program_sha256": _digest(batches, weights),
        },
    )
    check_fit(executable, hardware)
    return _with_variable_rows(executable)


def _with_variable_rows(executable: GcuExecutable) -> GcuExecutable:
    """Returns `executable` with graphs that compute any number of rows. An attribute lists the batches without, with reasons."""
    border = sum(tensor.sample_bytes for tensor in (*executable.inputs, *executable.outputs))
    batches, reasons = [], []
    for batch in executable.batches:
        row_bytes = border + batch.workspace_bytes // batch.batch_size
        graph, reason = with_variable_rows(batch.onnx, batch.batch_size, row_bytes=row_bytes, weights=executable.weights)
        batches.append(dataclasses.replace(batch, onnx=graph))
        if reason:
            reasons.append(f"batch {batch.batch_size}: {reason}")
    padded = {PADDED_ON_HOST: "; ".join(reasons)} if reasons else {}
    return dataclasses.replace(executable, batches=tuple(batches), attributes={**executable.attributes, **padded})


def _check_agreement(graphs: Sequence[BatchGraph]) -> None:
    """Checks that each batch size occurs once, and that all have the same inputs and outputs."""
    first = graphs[0]
    for before, graph in itertools.pairwise(graphs):
        if graph.batch_size == before.batch_size:
            raise OptionError(f"batch size {graph.batch_size} is given twice")
        for role in ("inputs", "outputs"):
            if getattr(graph, role) != getattr(first, role):
                raise ShapeError(
                    f"the {role} differ between batch sizes: {getattr(first, role)} at {first.batch_size}, "
                    f"{getattr(graph, role)} at {graph.batch_size}; dimension 0 must be the only one that depends on the batch"
                )


def _digest(batches: Sequence[CompiledBatch], weights: SharedWeights) -> str:
    """Returns the digest of the graphs and weights."""
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(hashlib.sha256(batch.onnx).digest())
    for name, own in weights.digests.items():
        digest.update(name.encode() + b"\0" + own)
    return digest.hexdigest()
