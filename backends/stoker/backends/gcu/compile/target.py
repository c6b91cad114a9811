"""The GCU as a target of the compiler: `stoker compile --target gcu`."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from stoker.backends.gcu.compile.chosen_constants import chosen_constants
from stoker.backends.gcu.compile.compiler import BuildFlag, card_of, clusters_of, compile_source
from stoker.backends.gcu.compile.limits import add_status, check_supported, with_status
from stoker.backends.gcu.compile.memory import memory_account
from stoker.backends.gcu.compile.porting import judged
from stoker.backends.gcu.compile.sizing import GcuSizedModel, lowered, sized_devices, sizing_options
from stoker.backends.gcu.executable import ExecutableError, write_executable
from stoker.backends.gcu.hardware import CARDS
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.timing import run_time_s
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.drift_check import is_compared
from stoker.compiler.convert.free_batch import dependence_of_rows, with_free_batch
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.convert.source import checked, read_onnx
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.options import CompilerOptions, check_operator_mode, effective
from stoker.compiler.porting import PortingFact
from stoker.compiler.porting_walk import porting_facts
from stoker.compiler.sizing import SizedDevice, SizedModel
from stoker.compiler.target import Artefact, SourceModel, Target, fed_inputs

#: Fields of `CompilerOptions` that belong to this compiler.
GCU_OPTIONS = frozenset({"build_flag", "resource_mode", "operators", "cost_constants", "card"})
_logger = logging.getLogger(__name__)
#: Options that have an effect here, or that concern the command or the device family instead of the program.
_HEEDED = GCU_OPTIONS | {
    "batch_axis",
    "compilation_progress_logger",
    "enable_model_fusion",  # several models are rejected, by `export`
    "ipu_version",
    "show_compilation_progress_bar",
}


class GcuTarget(Target):
    """Compiles for a simulated Enflame i20, into a `model.exec` file."""

    name = "gcu"
    aliases = ("enflame", "topsinference", "engine")
    artefact_filename = "model.exec"
    takes_batch_sizes = True
    has_porting = True
    build_options = GCU_OPTIONS
    #: The device has 64-bit integers, so that inputs and outputs keep the types of the model.
    skip_passes = ("int64_to_int32",)

    def check_options(self, options: CompilerOptions, precisions: Sequence[str]) -> None:
        """Rejects unknown build flags and resource modes, and precisions that the device does not support.

        Raises:
            OptionError: naming option, value and what was expected.
        """
        idle = [name for name in effective(options) if name not in _HEEDED]
        if idle:
            _logger.warning("the GCU's compiler has no option %s: it has no effect", ", ".join(idle))
        with with_status():
            check_operator_mode(options)
            BuildFlag.of(options.build_flag)
            clusters_of(options.resource_mode, card_of(options))
            chosen_constants(options)
            for precision in precisions:
                if precision not in ("fp32", "fp16"):
                    raise OptionError(f"precision {precision}: the i20 has fp32 and fp16; give build_flag fp16 or mixed")

    def check_operators(self, model: ir.Model, options: CompilerOptions, custom_libraries: Sequence[str]) -> None:
        """Checks a converted model whose outputs have no static shape: an unsupported operator is often the cause.

        Raises:
            GcuUnsupportedOperators: the text lists all nodes that the device cannot run, with reasons.
        """
        with with_status():
            check_supported(typed_graph(ir.to_proto(model)), card_of(options))

    def porting(self, model: onnx.ModelProto, options: CompilerOptions, custom_libraries: Sequence[str] = ()) -> Sequence[PortingFact]:
        """Judges each node by this compiler's operators, because the vendor publishes no list: see `Target.porting`."""
        return porting_facts(model, judged)

    def explain(self, error: CompileError) -> None:
        """Adds the vendor's status name to the text of the error."""
        add_status(error)

    def sized_devices(self) -> Sequence[SizedDevice]:
        return sized_devices()

    def sizing_options(self, device: SizedDevice, precision: str) -> Mapping[str, object]:
        return sizing_options(device, precision)

    def conversion_precision(self, precision: str) -> str:
        return "fp32"  # the build flag makes the others

    def sized_model(self, source: SourceModel, options: CompilerOptions) -> SizedModel:
        """See `Target.sized_model`.

        Raises:
            CompileError: the device cannot run the model, or an option is invalid.
        """
        return GcuSizedModel(source, options)

    def lowered(self, source: SourceModel, options: CompilerOptions) -> onnx.ModelProto:
        """See `Target.lowered`.

        Raises:
            CompileError: see `sizing.lowered`.
        """
        return lowered(source, options)

    def export(self, sources: Sequence[SourceModel], options: CompilerOptions, path: Path) -> Artefact:
        """Compiles the one source into the file `path`, which appears whole or not at all.

        Raises:
            CompileError: see `compile_source`; there are several sources; or the file cannot be written.
        """
        with with_status():
            if len(sources) != 1:
                raise OptionError("the GCU runs one model in an executable: compile each by itself, and serve them side by side")
            executable = compile_source(sources[0], options)
            is_batched = _has_independent_rows(sources[0], executable)
        try:
            write_executable(path, executable)
        except ExecutableError as error:
            raise CompileError(f"the executable cannot be written: {error}") from error
        datatypes = {each.name: (each.dtype,) for each in (*executable.inputs, *executable.outputs)}
        return Artefact(
            path=path, summary=summarise(executable, options), config=served_config(executable, is_batched=is_batched), datatypes=datatypes
        )


def served_config(executable: GcuExecutable, *, is_batched: bool = True) -> Mapping[str, object]:
    """Returns fields of config.pbtxt. max_batch_size is the largest compiled batch, or 0 if not `is_batched`."""
    return {"backend": "topsinference", "max_batch_size": executable.max_batch_size if is_batched else 0}


def _has_independent_rows(source: SourceModel, executable: GcuExecutable) -> bool:
    """Whether a server may join requests to a batch and pad it. Logs a warning if it may not.

    Raises:
        ShapeError: it may not, but there are several batch sizes, and a server pads a batch to the next size.
    """
    if not executable.inputs:
        return False  # no request says how many rows it wants
    if executable.max_batch_size < 2:
        return True
    reason = dependence_of_rows(source)
    if not reason:
        return True
    if len(executable.batches) > 1:
        sizes = ", ".join(str(batch.batch_size) for batch in executable.batches)
        raise ShapeError(
            f"batch sizes {sizes}: {reason}, and a batch of another size would be filled up; compile for one size, which is served as it is"
        )
    _logger.warning("the model is served without batching, with the shapes it has: %s", reason)
    return False


def summarise(executable: GcuExecutable, options: CompilerOptions) -> Mapping[str, object]:
    """Returns the summary of an executable: device, precision, memory, and the modelled times of each batch size."""
    hardware = CARDS[executable.card.lower()]
    clusters = clusters_of(options.resource_mode, hardware)
    latency = {batch.batch_size: run_time_s(batch, clusters) for batch in executable.batches}
    account = memory_account(executable)
    return {
        "device": f"simulated GCU, {hardware.label}, {clusters} cluster(s)",
        "build_flag": executable.precision,
        "cost_constants": chosen_constants(options).source,
        "operators": "this compiler's; the vendor publishes no list",
        "batch_sizes": ", ".join(str(size) for size in latency),
        "hbm_bytes": sum(account.values()),
        "hbm_capacity_bytes": hardware.hbm_bytes,
        **{f"{name}_bytes": size for name, size in account.items()},
        "modelled_latency_ms": {f"batch {size}": 1e3 * seconds for size, seconds in latency.items()},
        "modelled_samples_per_s": {f"batch {size}": size / seconds for size, seconds in latency.items()},
    }


def build(
    model: onnx.ModelProto | Path,
    *,
    name: str = "",
    batch_sizes: Sequence[int] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = (),
    build_flag: str = "fp32",
    resource_mode: str = "",
    card: str = "i20",
) -> GcuExecutable:
    """Converts and compiles a model.

    Args:
        model: An ONNX model, or the path of its file.
        name: Name of the executable; empty: that of the file or the graph.
        batch_sizes: Batch sizes to compile for, also if the model was exported for a single one; empty: the size in the model or in
            `input_shapes`.
        input_shapes: Complete shapes, including the batch, of inputs with variable dimensions.
        outputs: The outputs wanted; empty for all.
        build_flag: `fp32`, `fp16`, `mixed`, or the vendor's names of these.
        resource_mode: See `clusters_of`.
        card: See `card_of`.

    Raises:
        CompileError: the file cannot be read, an option is wrong, or the model exceeds a limit of the device.
    """
    if len(set(batch_sizes)) != len(batch_sizes) or any(size < 1 for size in batch_sizes):
        raise OptionError(f"batch_sizes are {list(batch_sizes)}; expected different sizes of 1 or more")
    source = read_onnx(str(model)) if isinstance(model, Path) else model
    shapes = {key: tuple(sizes) for key, sizes in (input_shapes or {}).items()}
    plain = ConversionOptions(input_shape=shapes, skip_passes=GcuTarget.skip_passes)
    sized = [
        ConversionOptions(input_shape=shapes, skip_passes=GcuTarget.skip_passes, batch_size=size, batch_axis=0) for size in batch_sizes
    ]
    freed = with_free_batch(checked(source, "the model"), batch_sizes)
    if sized:
        converted = [
            Converter.of(each).convert_internal(freed, is_compared=is_compared(size, batch_sizes))
            for size, each in zip(batch_sizes, sized, strict=True)
        ]
    else:
        converted = [Converter.of(plain).convert_internal(freed)]
    described = SourceModel(
        model=converted[0],
        name=name or (model.stem if isinstance(model, Path) else source.graph.name) or "model",
        outputs=tuple(outputs),
        inputs=tuple(each.name for each in fed_inputs(source)),
        batches=converted if len(converted) > 1 else (),
        source=freed,
    )
    executable = compile_source(described, CompilerOptions(build_flag=build_flag, resource_mode=resource_mode, card=card))
    if len(executable.batches) > 1:  # a run with fewer samples than a compiled batch is padded
        _has_independent_rows(described, executable)
    return executable
