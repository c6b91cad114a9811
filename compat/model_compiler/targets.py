"""Edges from an ONNX model in memory to what is served: on simulated devices, and as ONNX on the CPU.

Combines `input_shapes` with the model's own inputs: the sizes of one sample, and the batch if it is fixed. Adlik's requests write shapes
without the batch on some ways and with it on others. Both are accepted, distinguished by the rank that the model declares.
"""

import dataclasses
import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from model_compiler.edges import Job
from model_compiler.request import BuildFlag, CompileRequest, InputShapes
from model_compiler.sources import GcuEngine, OnnxModel, PopefExecutable, ServedIr, ServedOnnx
from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.drift_check import is_compared
from stoker.compiler.convert.free_batch import dependence_of_rows
from stoker.compiler.convert.free_dimensions import closed
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.convert.source import checked
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.options import CompilerOptions, compiler_options
from stoker.compiler.output_files import write_model
from stoker.compiler.repository_writer import ServedTensor, config_name, served_tensors
from stoker.compiler.target import Artefact, SourceModel, Target, fed_inputs, find_target, rejections_of

logger = logging.getLogger(__name__)

#: An image has its channels and two dimensions beside the batch.
_IMAGE_DIMS = 3

Border = tuple[tuple[ServedTensor, ...], tuple[ServedTensor, ...]]


def batched_border(source: onnx.ModelProto, compiled: onnx.ModelProto, artefact: Artefact, request: CompileRequest) -> Border:
    """Inputs and outputs of a model whose tensors all have the batch as dimension 0.

    Args:
        source: Its element types are what clients send and get where the server casts them.
        compiled: Its shapes are static.
        artefact: Has the element types that can be served.
        request: Has the layouts.

    Raises:
        CompileError: a tensor has a type or shape that no request can carry.
        OptionError: see `with_layouts`.
    """
    inputs, outputs = served_tensors(source, compiled, is_batched=True, datatypes=artefact.datatypes)
    return with_layouts(inputs, request), tuple(outputs)


def with_layouts(inputs: list[ServedTensor], request: CompileRequest) -> tuple[ServedTensor, ...]:
    """`inputs` with the layouts of `input_formats`, which has one for each input, in order, or none at all.

    What is no image has no layout. Requests give it one nevertheless, since Adlik loses inputs without; that is a warning here.

    Raises:
        OptionError: there are too many or too few.
    """
    layouts = request.input_formats or (None,) * len(inputs)
    if len(layouts) != len(inputs):
        names = ", ".join(f"'{each.name}'" for each in inputs)
        raise OptionError(f"input_formats: {len(layouts)} formats for {len(inputs)} inputs: {names}; write null for what is no image")
    made = []
    for each, layout in zip(inputs, layouts, strict=True):
        if layout is not None and len(each.dims) != _IMAGE_DIMS:
            logger.warning("input_formats: %s has no effect on input '%s', no image: %s", layout.name.lower(), each.name, list(each.dims))
            layout = None
        made.append(each if layout is None else dataclasses.replace(each, layout=layout.value))
    return tuple(made)


#: A dimension's size; None where it is variable.
Dim = int | None


@dataclass(frozen=True, slots=True)
class InputSizes:
    """The inputs of a model, after `input_shapes`.

    Attributes:
        sizes: By name in the model's order: one sample's, without dimension 0.
        model_batch: Dimension 0 where the model fixes it.
        requested_batch: Dimension 0 where `input_shapes` says it.
    """

    sizes: Mapping[str, tuple[Dim, ...]]
    model_batch: int | None
    requested_batch: int | None

    def of_batch(self, batch: int) -> dict[str, tuple[int, ...]]:
        """All shapes with this batch.

        Raises:
            ShapeError: a dimension is variable still; all of them are named.
        """
        variable = [
            f"input '{name}' dimension {axis}" for name, sizes in self.sizes.items() for axis, size in enumerate(sizes, 1) if size is None
        ]
        if variable:
            raise ShapeError(f"the device takes static shapes only: give input_shapes, which fix {'; '.join(variable)}")
        return {name: (batch, *(size for size in sizes if size is not None)) for name, sizes in self.sizes.items()}


def input_sizes(model: onnx.ModelProto, request: CompileRequest) -> InputSizes:
    """The sizes of the inputs of `model`.

    Raises:
        OptionError: `input_shapes` names inputs that do not exist, or gives too few or too many.
        ShapeError: an input has no declared rank or no batch dimension, or a size contradicts the model or another input.
    """
    fed = fed_inputs(model)
    given = _by_name(request.input_shapes, [value.name for value in fed])
    sizes: dict[str, tuple[Dim, ...]] = {}
    of_model: dict[str, int] = {}
    requested: dict[str, int] = {}
    for value in fed:
        declared = _declared(value)
        shape = given.get(value.name, declared)
        whole: Sequence[Dim] = (None, *shape) if len(shape) == len(declared) - 1 else shape
        if len(whole) != len(declared):
            raise ShapeError(
                f"input_shapes: input '{value.name}' has {len(declared)} dimensions; expected that many sizes, or one fewer (without the "
                f"batch), got {list(shape)}"
            )
        for axis, (known, wanted) in enumerate(zip(declared, whole, strict=True)):
            if None not in (known, wanted) and known != wanted:
                raise ShapeError(f"input_shapes: input '{value.name}' dimension {axis} is {known} in the model and cannot be {wanted}")
        if declared[0] is not None:
            of_model[value.name] = declared[0]
        if whole[0] is not None:
            requested[value.name] = whole[0]
        sizes[value.name] = tuple(known if known is not None else wanted for known, wanted in zip(declared[1:], whole[1:], strict=True))
    return InputSizes(sizes, _one(of_model, "the model has"), _one(requested, "with input_shapes there are"))


def _declared(value: onnx.ValueInfoProto) -> tuple[Dim, ...]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ShapeError(f"input '{value.name}' has no declared shape; export the model with shapes")
    dims = tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in tensor.shape.dim)
    if not dims:
        raise ShapeError(f"input '{value.name}' is a scalar, which no batch can be made of: every input needs the batch as dimension 0")
    return dims


def _by_name(shapes: InputShapes, names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    listed = ", ".join(f"'{name}'" for name in names) or "none"
    if isinstance(shapes, Mapping):
        unknown = [f"'{name}'" for name in shapes if name not in names]
        if unknown:
            raise OptionError(f"input_shapes: the model has no input {', '.join(unknown)}; its inputs: {listed}")
        return shapes
    if shapes and len(shapes) != len(names):
        raise OptionError(f"input_shapes: {len(shapes)} shapes for {len(names)} inputs: {listed}")
    return dict(zip(names, shapes, strict=False))


def _one(batches: Mapping[str, int], who: str) -> int | None:
    if len(set(batches.values())) > 1:
        found = ", ".join(f"{size} for input '{name}'" for name, size in batches.items())
        raise ShapeError(f"dimension 0 is the batch and must be one for all inputs; {who} {found}")
    return next(iter(batches.values()), None)


GCU_TARGET, IPU_TARGET, CPU_TARGET = "gcu", "ipu", "cpu"
#: Adlik's platform string, the package and the format of OpenVINO.
OPENVINO = "openvino"
#: Adlik's platform string of models that run on TopsInference.
GCU_PLATFORM = "topsinference"
#: Keys of TopsInference's compile options that steer its own graph compiler.
_WITHOUT_EFFECT = frozenset({"hlir_options"})


def compile_engine(source: OnnxModel, job: Job) -> GcuEngine:
    """Compiles for a simulated GCU, for each batch size: those of the request, or the fixed one, or powers of two and max_batch_size.

    A run takes as long as its compiled batch, however few samples are in it. So the default batch sizes are 1, 2, 4 and so on, and
    max_batch_size: a run takes less than twice the samples of its request. The batch sizes share the weights.

    Raises:
        OptionError: an option is unknown, or the target is not installed.
        CompileError: the model cannot be compiled for it.
    """
    request = job.request
    target = find_target(GCU_TARGET)
    options = _gcu_options(request, target)
    model = checked(source.model, source.origin)
    with rejections_of(target, options):
        sizes = input_sizes(model, request)
        batches = _batch_sizes(sizes, request)
        converted = [_converted(model, sizes, batch, "fp32", target, request, is_compared(batch, batches)) for batch in batches]
    described = _source_model(model, converted[-1], request)
    artefact = _export(target, dataclasses.replace(described, batches=converted), options, job)
    inputs, outputs = batched_border(model, converted[-1], artefact, request)
    config = {
        "platform": GCU_PLATFORM,
        "platform_version": importlib.metadata.version("stoker"),
        "max_batch_size": request.max_batch_size,
    }
    return GcuEngine(path=artefact.path, filename=artefact.path.name, config=config, inputs=inputs, outputs=outputs)


def _gcu_options(request: CompileRequest, target: Target) -> CompilerOptions:
    given = dict(request.compile_options)
    for name in _WITHOUT_EFFECT & set(given):
        logger.warning("compile_options %s has no effect on a simulated device", name)
        del given[name]
    unknown = [name for name in given if name not in target.build_options]
    if unknown:
        known = sorted(target.build_options | _WITHOUT_EFFECT)
        raise OptionError(
            f"compile_options: the GCU's compiler has no {', '.join(unknown)}{did_you_mean(unknown[0], known)}; it has {', '.join(known)}"
        )
    settings: dict[str, Any] = {}
    if request.build_flag is not None or request.enable_fp16:
        settings["build_flag"] = request.flag.value
    if request.resource_mode is not None:
        settings["resource_mode"] = request.resource_mode
    return compiler_options(given, {}, settings=settings, origin="compile_options")


def _batch_sizes(sizes: InputSizes, request: CompileRequest) -> tuple[int, ...]:
    fixed = sizes.model_batch if sizes.model_batch is not None else sizes.requested_batch
    if request.batch_sizes:
        _check_fixed_batch(sizes, request.batch_sizes, "batch_sizes")
        return request.batch_sizes
    if fixed is None:
        largest = request.max_batch_size
        return (*(2**power for power in range((largest - 1).bit_length())), largest)
    if fixed > request.max_batch_size:
        raise ShapeError(f"max_batch_size {request.max_batch_size}: the engine's batch is fixed to {fixed}, and would never be full")
    return (fixed,)


def compile_popef(source: OnnxModel, job: Job) -> PopefExecutable:
    """Compiles for a simulated IPU, with max_batch_size as its micro-batch.

    Raises:
        OptionError: the request has options that only the GCU knows, or the target is not installed.
        CompileError: the model cannot be compiled for it.
    """
    request = job.request
    only_gcu = [name for name in ("batch_sizes", "resource_mode") if getattr(request, name)]
    only_gcu += [f"compile_options {name}" for name in ("build_flag", "resource_mode") if name in request.compile_options]
    if only_gcu:
        raise OptionError(f"{' and '.join(only_gcu)}: serving_type popef has none; an IPU executable takes batches of max_batch_size")
    if request.flag is BuildFlag.MIXED:
        raise OptionError("build_flag mixed: the IPU computes in fp32 or fp16")
    target = find_target(IPU_TARGET)
    options = compiler_options(request.compile_options, {}, settings={}, origin="compile_options")
    model = checked(source.model, source.origin)
    sizes = input_sizes(model, request)
    _check_fixed_batch(sizes, (request.max_batch_size,), "max_batch_size")
    converted = _converted(model, sizes, request.max_batch_size, request.flag.value, target, request)
    artefact = _export(target, _source_model(model, converted, request), options, job)
    inputs, outputs = batched_border(model, converted, artefact, request)
    return PopefExecutable(path=artefact.path, filename=artefact.path.name, config=dict(artefact.config), inputs=inputs, outputs=outputs)


def _check_fixed_batch(sizes: InputSizes, wanted: Sequence[int], field: str) -> None:
    for batch, who in ((sizes.model_batch, "the model"), (sizes.requested_batch, "input_shapes")):
        if batch is not None and any(size != batch for size in wanted):
            said = ", ".join(map(str, wanted))
            raise ShapeError(f"{field} {said}: {who} has the batch fixed to {batch}; say {batch}, or leave the batch variable")


def _converted(
    model: onnx.ModelProto,
    sizes: InputSizes,
    batch: int,
    precision: str,
    target: Target,
    request: CompileRequest,
    is_compared: bool = True,
) -> onnx.ModelProto:
    shapes = sizes.of_batch(batch)
    options = ConversionOptions(input_shape=shapes, precision=precision, skip_passes=target.skip_passes, allow_drift=request.allow_drift)
    return Converter.of(options).convert_internal(model, is_compared=is_compared)


def _source_model(source: onnx.ModelProto, converted: onnx.ModelProto, request: CompileRequest) -> SourceModel:
    made = [value.name for value in fed_inputs(converted)]
    order = [value.name for value in source.graph.input if value.name in made]
    inputs = (*order, *(name for name in made if name not in order))
    return SourceModel(model=converted, name=request.model_name, inputs=inputs, source=source, allow_drift=request.allow_drift)


def _export(target: Target, source: SourceModel, options: CompilerOptions, job: Job) -> Artefact:
    artefact = target.export([source], options, job.workspace / target.artefact_filename)
    if not artefact.config.get("max_batch_size"):
        raise ShapeError(
            f"max_batch_size {job.request.max_batch_size}: the model takes no batches: an input or output lacks the batch as dimension 0, "
            "or the rows of a batch depend on each other; 'stoker compile' writes such a model with the shapes it has"
        )
    return artefact


FILENAME = "model.onnx"
PLATFORM = "onnx"
#: Above, weights would go to a file of their own.
MAX_BYTES = (1 << 30) - 1
#: config.pbtxt's word for a dimension that may vary.
VARIABLE = -1


def serve_onnx(source: OnnxModel, job: Job) -> ServedOnnx:
    """Writes the model as it computes: nothing is converted, so that its responses are the source's to the last bit.

    Raises:
        OptionError: the request asks for a precision, or its shapes or formats do not fit.
        ShapeError: the batch is fixed, to another size than max_batch_size, or the rows of a batch depend on each other.
        CompileError: the model is invalid, or too large for one file.
    """
    request = job.request
    if request.flag is not BuildFlag.FP32 or request.batch_sizes:
        name = "batch_sizes" if request.batch_sizes else "build_flag" if request.build_flag is not None else "enable_fp16"
        raise OptionError(
            f"{name}: serving_type {request.serving_type} serves the model as it is; use `stoker compile --precision` to convert it"
        )
    model = checked(source.model, source.origin)
    sizes = input_sizes(model, request)
    _check_batch(sizes, request)
    if request.input_shapes:
        model = _with_sizes(model, sizes)
    reason = (
        dependence_of_rows(SourceModel(model=closed(model), name=request.model_name, source=model)) if request.max_batch_size > 1 else ""
    )
    if reason:
        raise ShapeError(f"max_batch_size {request.max_batch_size}: {reason}; give max_batch_size 1")
    if model.ByteSize() > MAX_BYTES:
        raise CompileError(f"{source.origin}: {model.ByteSize():,} bytes; one ONNX file of a served version holds {MAX_BYTES:,} at most")
    path = job.workspace / FILENAME
    write_model(path, model)
    return ServedOnnx(
        path=path,
        filename=FILENAME,
        config={
            "platform": PLATFORM,
            "platform_version": importlib.metadata.version("onnx"),
            "max_batch_size": request.max_batch_size,
        },
        inputs=with_layouts([_served(value) for value in fed_inputs(model)], request),
        outputs=tuple(_served(value) for value in _with_output_shapes(model).graph.output),
    )


def serve_openvino(source: OnnxModel, job: Job) -> ServedIr:
    """Converts the model to OpenVINO IR. It is computed in FP32, also on CPUs with bfloat16 instructions, where OpenVINO prefers these.

    Raises:
        OptionError: as `serve_onnx`, or OpenVINO is not installed.
        CompileError: as `serve_onnx`, or OpenVINO does not read the model or computes some of its integers inexactly.
    """
    request = job.request
    served = serve_onnx(source, job)
    target, options = find_target(CPU_TARGET), CompilerOptions(format=OPENVINO)
    target.check_options(options, ("fp32",))
    model = onnx.load(served.path)
    artefact = target.export([_source_model(model, model, request)], options, job.workspace / target.filename(options))
    return ServedIr(
        path=artefact.path,
        filename=target.filename(options),
        config={
            "platform": OPENVINO,
            "platform_version": importlib.metadata.version(OPENVINO),
            "max_batch_size": request.max_batch_size,
            "parameters": artefact.config["parameters"],
        },
        inputs=served.inputs,
        outputs=served.outputs,
        companions=artefact.companions,
    )


def _check_batch(sizes: InputSizes, request: CompileRequest) -> None:
    if sizes.model_batch not in (None, request.max_batch_size):
        raise ShapeError(
            f"max_batch_size {request.max_batch_size}: the model's batch is fixed to {sizes.model_batch}; say {sizes.model_batch}, or "
            "export the model with a variable batch"
        )


def _with_sizes(model: onnx.ModelProto, sizes: InputSizes) -> onnx.ModelProto:
    """A copy in which the inputs have these sizes, and everything the shapes that follow; the batch stays as it is."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in fed_inputs(copy):
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(list(dims)[1:], sizes.sizes[value.name], strict=True):
            if size is not None:
                dim.dim_value = size
    try:
        return onnx.shape_inference.infer_shapes(copy, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ShapeError(f"input_shapes: the model cannot have these: {' '.join(str(error).split())}") from None


def _with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model`, or, where it does not declare what its outputs look like, a copy in which that is inferred."""
    if all(value.type.tensor_type.HasField("shape") for value in model.graph.output):
        return model
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _served(value: onnx.ValueInfoProto) -> ServedTensor:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not tensor.shape.dim:
        raise ShapeError(f"tensor '{value.name}' has no shape with a batch for the metadata")
    dims = tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else VARIABLE for dim in list(tensor.shape.dim)[1:])
    datatype = config_name(value.name, tensor.elem_type)
    return ServedTensor(value.name, datatype, dims, datatype)
