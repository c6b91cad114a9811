"""A whole executable: one graph for each batch size, their weights shared, all of it within the card's limits."""

import hashlib
import itertools
from collections.abc import Sequence

from stoker.backends.gcu.compile.batch_graph import BatchGraph, batch_graph
from stoker.backends.gcu.compile.build_options import BuildFlag, clusters_of
from stoker.backends.gcu.compile.cost_model import FITTED, CostConstants
from stoker.backends.gcu.compile.memory import SharedWeights, check_fit, share_weights
from stoker.backends.gcu.hardware import I20, GcuHardware
from stoker.backends.gcu.program import CompiledBatch, GcuExecutable
from stoker.compiler.errors import OptionError, ShapeError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel


def compile_source(
    source: SourceModel, options: CompilerOptions, *, hardware: GcuHardware = I20, constants: CostConstants = FITTED
) -> GcuExecutable:
    """Compiles one converted model, for each of its batch sizes.

    Args:
        source: Converted to static shapes; `source.batches` has it for several batch sizes.
        options: `build_flag`, `resource_mode`.
        hardware: The card.
        constants: Of the cost model.

    Raises:
        OptionError: an option is unknown.
        ShapeError: a size is not known, or dimension 0 is not the batch.
        GcuUnsupportedOperators: naming every node that the device cannot run.
        CompileError: anything else that the device has not, or has not enough of.
    """
    flag = BuildFlag.of(options.build_flag)
    clusters = clusters_of(options.resource_mode, hardware)
    if source.custom_libraries:
        raise OptionError("custom_library_so_paths: the GCU has no custom operators")
    models = list(source.batches) or [source.model]
    graphs = sorted(
        (
            batch_graph(model, inputs=source.inputs, outputs=source.outputs, flag=flag, hardware=hardware, constants=constants)
            for model in models
        ),
        key=lambda graph: graph.batch_size,
    )
    _check_agreement(graphs)
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
            "program_sha256": _digest(batches, weights),
        },
    )
    check_fit(executable, hardware)
    return executable


def _check_agreement(graphs: Sequence[BatchGraph]) -> None:
    """Each batch size is there once, and all have the same inputs and outputs."""
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
    """Of what is computed: graphs and weights."""
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(hashlib.sha256(batch.onnx).digest())
    for name, own in weights.digests.items():
        digest.update(name.encode() + b"\0" + own)
    return digest.hexdigest()
