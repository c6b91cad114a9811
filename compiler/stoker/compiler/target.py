"""`Target`: the interface of a device family for which models are compiled, and the targets that are installed.

Targets are found by the entry-point group `stoker.targets`; the entry point names a `Target` subclass without constructor arguments.
"""

import abc
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

import onnx
import onnx_ir as ir

from stoker.backends.api.nearest import did_you_mean
from stoker.backends.api.tensor import DataType
from stoker.compiler.errors import CompileError, InvalidResultError, NotStaticError, OptionError, PassError, ShapeError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.porting import PortingFact
from stoker.compiler.sizing import SizedDevice, SizedModel


def fed_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Returns the inputs without an initialiser, which callers must feed."""
    given = {each.name for each in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in given]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """One converted model on its way into an executable.

    Attributes:
        model: After conversion: static shapes (but for a target that `keeps_free_dimensions`), the precision asked for.
        name: `graph0`... if several models are fused; otherwise the model's name.
        outputs: The outputs wanted; empty for all.
        inputs: Names of its inputs in the order of the source model.
        custom_libraries: Libraries of ONNX Runtime custom operators that its nodes need.
        batches: The model converted for each requested batch size; `model` is the first. Empty unless several sizes were requested.
        source: The model before conversion; None if it was not kept.
        precision: The requested precision; for precisions that the target makes itself, `model` is in FP32.
        samples: File of samples for calibration and comparison; None if there is none.
        batch_size: Rows per batch that the options set; None if they do not.
        allow_drift: Whether a result that differs too much from the source is only reported.
    """

    model: onnx.ModelProto
    name: str
    outputs: Sequence[str] = ()
    inputs: Sequence[str] = ()
    custom_libraries: Sequence[str] = ()
    batches: Sequence[onnx.ModelProto] = ()
    source: onnx.ModelProto | None = None
    precision: str = "fp32"
    samples: str | None = None
    batch_size: int | None = None
    allow_drift: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPart:
    """The data for serving one model of a fused executable.

    Attributes:
        suffix: Distinguishes the part: the served model is called `<model_name>_<suffix>`.
        config: Same as `Artefact.config`, with the parameters that select this part.
        files: Further text files of a version's folder, by name.
        datatypes: Same as `Artefact.datatypes`, by the tensor names in this part's model.
        not_servable: Why a server's results would differ from the source model's; empty if they would not.
    """

    suffix: str
    config: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    datatypes: Mapping[str, Sequence[DataType]] = field(default_factory=dict)
    not_servable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A compiled model on disk.

    Attributes:
        path: The file.
        summary: Text for `--show` and for a served config: device, batch, memory, estimated latency and throughput.
        config: Fields for config.pbtxt that only the target knows: `backend`, `max_batch_size`, `parameters`.
        parts: Of a fused executable, one for each of its models, in order; they are served instead of the whole.
        companions: Further files that must lie beside the first, by name; they are where `export` left them, in the same folder.
        datatypes: By input and output, the element types in which it may be served: what the file has, then those that its backend casts.
            Of a tensor that is not named, the converted model's type.
        not_servable: As `ServedPart.not_servable`.
    """

    path: Path
    summary: Mapping[str, object] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    parts: Sequence[ServedPart] = ()
    companions: Mapping[str, Path] = field(default_factory=dict)
    datatypes: Mapping[str, Sequence[DataType]] = field(default_factory=dict)
    not_servable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured speed of an executable.

    Attributes:
        batch_size: Items per call.
        calls: Number of measured calls.
        latency_s: Mean time of one call, in seconds.
        throughput: Items per second.
        note: Qualifier of the figures, such as `simulated device`; empty for a real device.
        parts: Of a fused executable, the same for each of its models, by name; the figures above are then the first one's.
    """

    batch_size: int
    calls: int
    latency_s: float
    throughput: float
    note: str = ""
    parts: Mapping[str, "Measurement"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing the compiled model with the source model.

    Attributes:
        text: Report text.
        data: The same report as JSON-compatible data.
        measurement: Speed of the compiled model; None if it was not requested.
        snr_db: Lowest signal-to-noise ratio of the numeric outputs, in decibels; None if there are none.
        speedup: Speed relative to the source model; None if it was not requested.
        failures: Outputs that differ more from the source's than the precision explains: see `check_limits`.
    """

    text: str
    data: Mapping[str, object]
    measurement: Measurement | None = None
    snr_db: float | None = None
    speedup: float | None = None
    failures: Sequence[str] = ()


class Target(abc.ABC):
    """A device family for which models are compiled."""

    #: Name for `--target`.
    name: str
    aliases: tuple[str, ...] = ()
    #: Name of the file that `export` writes.
    artefact_filename: str
    #: Whether one executable may hold several compiled batch sizes (`SourceModel.batches`).
    takes_batch_sizes: bool = False
    #: Whether `report` is implemented.
    has_report: bool = False
    #: Whether `porting` is implemented.
    has_porting: bool = False
    #: Device-specific fields of `CompilerOptions` that this target supports: `build_flag`, `resource_mode`.
    build_options: frozenset[str] = frozenset()
    #: Converter passes that do not run for this target.
    skip_passes: tuple[str, ...] = ()
    #: Precisions that the converter, or this target behind it, makes; `check_options` may know that a device lacks one of them.
    precisions: tuple[str, ...] = ("fp32", "fp16", "fp8", "fp8_weight")
    #: Whether `compare` is implemented: the compiled model, not the converted one, is compared with the source.
    compares: bool = False
    #: Whether dimensions that the source leaves open, and no option gives a size, stay open; otherwise each must get a size.
    keeps_free_dimensions: bool = False

    def filename(self, options: CompilerOptions) -> str:
        """Returns the name of the file that `export` writes with these options."""
        return self.artefact_filename

    def check_options(self, options: CompilerOptions, precisions: Sequence[str]) -> None:  # noqa: B027 - most devices reject nothing
        """Checks what can be checked before a model is read; `precisions` are the requested precisions of the models.

        Raises:
            OptionError: the device cannot do what is asked for, whatever the model.
        """

    def check_operators(  # noqa: B027 - a device may take all of them
        self, model: ir.Model, options: CompilerOptions, custom_libraries: Sequence[str]
    ) -> None:
        """Checks a converted model that cannot be compiled because its outputs have no static shape.

        Raises:
            CompileError: the device cannot run some of its operators anyway; all of them are listed.
        """

    def explain(self, error: CompileError) -> None:  # noqa: B027 - our own words are enough for most devices
        """Adds advice for users of this device to the text of `error`, a failed conversion."""

    @abc.abstractmethod
    def export(self, sources: Sequence[SourceModel], options: CompilerOptions, path: Path) -> Artefact:
        """Compiles `sources` (several: fused into one executable) into file `path`.

        Raises:
            CompileError: a limit of the device is exceeded, or an operator is not supported.
        """

    def sized_devices(self) -> Sequence[SizedDevice]:
        """Returns the simulated devices for which `sized_model` plans models; empty if this target models no times."""
        return ()

    def sizing_options(self, device: SizedDevice, precision: str) -> Mapping[str, object]:
        """Returns the fields of `CompilerOptions` with which a model in `precision` is compiled for `device`."""
        return device.options

    def conversion_precision(self, precision: str) -> str:
        """Returns the precision of the converted model from which this target makes `precision`."""
        return precision

    def sized_model(self, source: SourceModel, options: CompilerOptions) -> SizedModel:
        """Prepares `source` to be planned, without compiling it.

        Raises:
            CompileError: an operator is not supported, an option is invalid, or this target models no times.
        """
        raise CompileError(f"target '{self.name}' models no times")

    def lowered(self, source: SourceModel, options: CompilerOptions) -> onnx.ModelProto:
        """Returns the graph of `source` as the simulated device computes it, with every rounding explicit.

        Raises:
            CompileError: as `sized_model`.
        """
        return source.model

    def report(self, sources: Sequence[SourceModel], options: CompilerOptions, folder: Path) -> Sequence[Path]:
        """Writes the planned memory and time of `sources` into `folder` without compiling, and returns the files.

        A model that does not fit is reported too.

        Raises:
            CompileError: this target has no report, a model cannot be planned, or a file cannot be written.
        """
        raise CompileError(f"target '{self.name}' has no report of what it compiles")

    def porting(self, model: onnx.ModelProto, options: CompilerOptions, custom_libraries: Sequence[str] = ()) -> Sequence[PortingFact]:
        """Judges which tools compile each node of a source model; nothing is converted or compiled.

        Args:
            model: The model before conversion; dimensions may be open. Not changed.
            options: Those that choose the device count.
            custom_libraries: Libraries of ONNX Runtime custom operators that its nodes need.

        Returns:
            One fact for each node that the device would run, sub-graphs included, in the order of the graph. A model of which every fact
            has `Support.VENDOR` ports.

        Raises:
            CompileError: this target has no list of operators, or the model is no valid ONNX.
        """
        raise CompileError(f"target '{self.name}' has no list of operators")

    def compare(self, artefact: Artefact, sources: Sequence[SourceModel], options: CompilerOptions, *, is_timed: bool) -> Comparison:
        """Compares the result of `export` with the source models: outputs and, if `is_timed`, speed.

        Raises:
            CompileError: this target compares nothing, or one of the two does not run.
        """
        raise CompileError(f"target '{self.name}' does not compare what it compiles with the source")

    def measure(self, path: Path, *, calls: int = 100, custom_libraries: Sequence[str] = ()) -> Measurement:
        """Runs the executable in file `path` with random data, `calls` times, with these libraries of custom operators.

        Raises:
            CompileError: this target cannot run what it compiles, or running it failed.
        """
        raise CompileError(f"target '{self.name}' cannot run {path}: it only compiles")


ENTRY_POINT_GROUP = "stoker.targets"


def target_names() -> list[str]:
    """Returns the names of the installed targets, sorted."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)})


def find_target(name: str) -> Target:
    """Returns the target called `name`: the name of its entry point or one of its aliases.

    Raises:
        OptionError: there is none; the text lists those there are.
        CompileError: it is installed, and cannot be imported.
    """
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name in points:
        return _made(name, points[name].load)
    # The classes define the aliases, so all targets are imported.
    for point_name, point in points.items():
        with contextlib.suppress(CompileError):  # one that cannot be imported has no aliases, and is not what was asked for
            target = _made(point_name, point.load)
            if name in target.aliases:
                return target
    known = target_names()
    raise OptionError(f"there is no target '{name}'{did_you_mean(name, known)}; installed: {', '.join(known) or 'none'}")


def _made(name: str, load: object) -> Target:
    try:
        target = load()()  # type: ignore[operator] # EntryPoint.load gives Any
    except ImportError as error:
        raise CompileError(f"target '{name}' is installed but cannot be imported: {error}") from error
    if not isinstance(target, Target):
        raise CompileError(f"entry point '{name}' of {ENTRY_POINT_GROUP} is no stoker.compiler.target.Target but {type(target).__name__}")
    return target


#: Errors that are constructed from their text alone.
_PLAIN_ERRORS = (CompileError, OptionError, PassError, ShapeError)


@contextlib.contextmanager
def rejections_of(target: Target, options: CompilerOptions, *, label: str = "", custom_libraries: Sequence[str] = ()) -> Iterator[None]:
    """Prefixes conversion errors inside the block with `label`; the target adds its checks and its advice to the text."""
    try:
        try:
            yield
        except (NotStaticError, InvalidResultError) as error:
            target.check_operators(error.model, options, custom_libraries)
            raise (ShapeError if isinstance(error, NotStaticError) else PassError)(str(error)) from error
    except CompileError as error:
        target.explain(error)
        if not label or type(error) not in _PLAIN_ERRORS:
            raise
        raise type(error)(f"{label}: {error}") from error
