"""`Converter` turns a source model into a model with fixed shapes and the requested precision.

The steps: check the model and convert it to the internal opset of the passes; set the input sizes and check that all dimensions are known;
run the passes of the options, then the passes that the user named; convert to the requested opset. `convert_internal` does all steps but
the last, and targets compile its result: an older opset computes the same, but splits operators that a target runs better as one.
`convert/drift_check.py` compares each result with the source.
"""

import copy
import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import onnx
import onnx_ir as ir

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.convert.drift_check import check_drift
from stoker.compiler.convert.free_dimensions import OpenBatch
from stoker.compiler.convert.opset import convert_for_output, convert_to_internal
from stoker.compiler.convert.options import COUNTS_WITH, NO_EFFECT, ConversionOptions
from stoker.compiler.convert.recipe import SIZE_STEPS, Step, conversion_steps, finish_steps, shape_steps
from stoker.compiler.convert.shape_functions import known_shapes, load_shape_functions
from stoker.compiler.convert.source import checked
from stoker.compiler.convert.source_operators import operators_of, record, recorded
from stoker.compiler.custom_libraries import library_paths, using_libraries
from stoker.compiler.errors import OptionError
from stoker.compiler.output_files import make_folder
from stoker.compiler.passes import Pass, PassManager, PassProgress, get_all_pass_names, get_pass, load_custom_passes
from stoker.compiler.passes.precision import LayerPrecisionCompare
from stoker.compiler.passes.shape import require_static_inputs
from stoker.compiler.precision.drift import LayerDistance

logger = logging.getLogger(__name__)

PRECISION_COMPARE_LOG = "precision_compare.log"


class Converter:
    """Converts models with one set of options.

    Args:
        options: Values by the field names of `ConversionOptions`, as text, lists or Python values; `used_passes` is an alias of `passes`.
            As in PopRT's Python API, and unlike its command line, FP8 scales default to 0.

    Raises:
        OptionError: a name is unknown, a value is not of its kind, or options contradict each other.
        CompileError: a file of custom passes or shape functions is missing or fails.
    """

    def __init__(self, **options: object) -> None:
        values = {"fp8_params": "F143,F143,0,0", **options}
        if "used_passes" in values:
            values["passes"] = values.pop("used_passes")
        self._take(ConversionOptions.of(values), is_version_requested="convert_version" in options)

    @classmethod
    def of(
        cls,
        options: ConversionOptions,
        *,
        is_version_requested: bool = False,
        log_folder: Path | None = None,
        keeps_free_dimensions: bool = False,
    ) -> Self:
        """Returns a converter for existing options.

        Args:
            options: The conversion options.
            is_version_requested: Whether the user set `convert_version`; any other opset is then an error.
            log_folder: Folder for `quantize.log` and `precision_compare.log`; None writes no logs.
            keeps_free_dimensions: Whether dimensions that the source leaves open, and that no option sets, stay open (including the batch).

        Raises:
            OptionError: a pass is named that does not exist.
            CompileError: a file of custom passes or shape functions is missing or fails.
        """
        made = cls.__new__(cls)
        made._take(options, is_version_requested=is_version_requested, log_folder=log_folder)
        made._keeps_free_dimensions = keeps_free_dimensions
        return made

    def _take(self, options: ConversionOptions, *, is_version_requested: bool, log_folder: Path | None = None) -> None:
        self._options = options
        self._log_folder = log_folder
        self._is_version_requested = is_version_requested
        self._keeps_free_dimensions = False
        self._layer_distances: tuple[LayerDistance, ...] = ()
        load_extensions(options)
        _check_pass_names(options)

    @property
    def options(self) -> ConversionOptions:
        """The options of the conversion."""
        return self._options

    @property
    def layer_distances(self) -> tuple[LayerDistance, ...]:
        """The results of `precision_compare` for each layer of the last conversion; empty without that option."""
        return self._layer_distances

    def convert(self, model: onnx.ModelProto, progress: PassProgress | None = None) -> onnx.ModelProto:
        """Returns the converted model, at opset `convert_version` if possible. `model` is not changed.

        Raises:
            CompileError: the model is invalid, a dimension is not fixed, or a pass rejects it; the text says what and where.
            CheckError: the result computes something else than `model`.
        """
        converted = self.to_output(self._convert_checked(model, progress))
        self.check_drift(model, converted)
        return converted

    def to_output(self, converted: onnx.ModelProto) -> onnx.ModelProto:
        """Converts the result of `convert_internal` to opset `convert_version`.

        Raises:
            CompileError: an operator cannot be written at that opset, which was asked for by name.
        """
        if self._options.only_manual_sharding:
            return converted
        with known_shapes(converted):
            return convert_for_output(converted, self._options.convert_version, self._is_version_requested)

    def convert_internal(
        self, model: onnx.ModelProto, progress: PassProgress | None = None, *, is_compared: bool = True
    ) -> onnx.ModelProto:
        """Returns the converted model at the internal opset, or at a newer one if FP8 types need it. Targets compile this model.

        Args:
            model: Not changed.
            progress: Called before each pass.
            is_compared: Whether to compare the result with `model`; false for most of many batch sizes.

        Raises:
            CompileError, CheckError: as `convert`.
        """
        converted = self._convert_checked(model, progress)
        if is_compared:
            self.check_drift(model, converted)
        return converted

    def check_drift(self, source: onnx.ModelProto, converted: onnx.ModelProto, *, notes: int = logging.WARNING) -> None:
        """Compares a result of this converter with its source; see `check_drift`.

        Raises:
            CheckError: `converted` computes something else than `source`.
        """
        options = self._options
        if options.only_manual_sharding:
            return
        source = checked(source, "the model")

        def convert(smaller: ConversionOptions) -> onnx.ModelProto:
            other = copy.copy(self)
            other._options, other._log_folder = smaller, None
            return other._convert_checked(source, None)

        with using_libraries(options.custom_library_so_paths):
            check_drift(source, converted, options, convert, notes=notes)

    def _convert_checked(self, model: onnx.ModelProto, progress: PassProgress | None) -> onnx.ModelProto:
        """Checks that `model` is valid, and converts it at the internal opset."""
        options = self._options
        model = checked(model, "the model")
        with known_shapes(model), using_libraries(options.custom_library_so_paths):
            if options.only_manual_sharding:
                return self._run(model, [Step("manual_sharding", {"config": options.manual_sharding_config})], progress)
            converted = self._convert(convert_to_internal(model), progress)
        if not self._keeps_free_dimensions and recorded(converted) is None:  # CPUs, which keep them, take every operator
            record(converted, operators_of(model))
        return converted

    def _convert(self, source: onnx.ModelProto, progress: PassProgress | None) -> onnx.ModelProto:
        options = self._options
        if self._log_folder is not None and options.precision in ("fp8", "fp8_weight"):
            make_folder(self._log_folder)
        graph = ir.from_proto(source)
        self._fix_shapes(graph)
        # One list, so that sorting can move a user's pass that declares constraints; the other user passes stay at the end.
        passes = [
            *self._made(conversion_steps(options, self._log_folder)),
            *(get_pass(name) for name in options.passes),
            *self._made(finish_steps(is_static=not self._keeps_free_dimensions)),
        ]
        PassManager(passes).run(graph, progress)
        if options.precision_compare:
            self._compare_layers(source, graph)
        return ir.to_proto(graph)

    def _fix_shapes(self, graph: ir.Model) -> None:
        steps = shape_steps(self._options)
        if not self._keeps_free_dimensions:
            PassManager(self._made(steps)).run(graph)
            require_static_inputs(graph)
            return
        sizes = [step for step in steps if step.name in SIZE_STEPS]
        batch = OpenBatch.of(graph)
        PassManager(self._made(sizes)).run(graph)
        batch.reopen(self._options)
        PassManager(self._made(step for step in steps if step not in sizes)).run(graph)

    def _compare_layers(self, source: onnx.ModelProto, graph: ir.Model) -> None:
        """Compares the layers with the same conversion in FP32, because fusions change which tensors are layer outputs."""
        in_fp32 = copy.copy(self)
        in_fp32._log_folder = None
        in_fp32._options = dataclasses.replace(
            self._options, precision="fp32", precision_compare=False, calibration_with_data=False, calibration_loss_type="kld"
        )
        settings: dict[str, Any] = {
            "source": in_fp32._convert(source, None),
            "data_preprocess": self._options.data_preprocess,
            "precision_compare_log": None if self._log_folder is None else self._log_folder / PRECISION_COMPARE_LOG,
        }
        comparison = LayerPrecisionCompare(**settings)
        PassManager([comparison]).run(graph)
        self._layer_distances = comparison.distances

    def _run(self, model: onnx.ModelProto, steps: Iterable[Step], progress: PassProgress | None) -> onnx.ModelProto:
        return PassManager(self._made(steps)).run(model, progress)

    def _made(self, steps: Iterable[Step]) -> list[Pass]:
        dropped = frozenset(self._options.skip_passes)
        return [get_pass(step.name, **step.settings) for step in steps if step.name not in dropped]


def load_extensions(options: ConversionOptions) -> None:
    """Runs the user's files of passes and shape functions, and warns of passes that they register but `passes` does not name.

    Raises:
        OptionError: a library of custom operators is missing.
        CompileError: a file is missing or fails.
    """
    library_paths(options.custom_library_so_paths)
    for path in options.custom_pass_config:
        names = load_custom_passes(path)
        idle = [name for name in names if name not in options.passes]
        if idle:
            logger.warning("%s registers %s, which will not run: name it with passes", path, ", ".join(idle))
    for path in options.custom_shape_inference:
        load_shape_functions(path)


def warn_of_no_effect(models: Iterable[ConversionOptions]) -> None:
    """Logs a warning for each given option without effect, on a simulated device or with the other options."""
    defaults, given_options = ConversionOptions(), list(models)
    for name, reason in NO_EFFECT.items():
        if any(getattr(options, name) != getattr(defaults, name) for options in given_options):
            logger.warning("%s has no effect on a simulated device: %s", name, reason)
    for name, (other, values) in COUNTS_WITH.items():
        given = [options for options in given_options if getattr(options, name) != getattr(defaults, name)]
        if given and not any(getattr(options, other) in values for options in given):
            logger.warning("%s has no effect: it counts with %s %s only", name, other, " or ".join(map(str, values)))


def _check_pass_names(options: ConversionOptions) -> None:
    known = get_all_pass_names()
    for option, names in (("passes", options.passes), ("skip_passes", options.skip_passes)):
        for name in names:
            if name not in known:
                raise OptionError(f"{option}: there is no pass '{name}'{did_you_mean(name, known)}")
