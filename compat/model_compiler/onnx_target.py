"""The edge to a served ONNX file: the model itself, checked, with the dimensions fixed that `input_shapes` names."""

import importlib.metadata

import onnx

from model_compiler.edges import Job
from model_compiler.input_shapes import InputSizes, fed_inputs, input_sizes
from model_compiler.kinds import BuildFlag
from model_compiler.models import OnnxModel, ServedOnnx
from model_compiler.request import CompileRequest
from model_compiler.serving import with_layouts
from stoker.compiler.convert.source import checked
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.output_files import write_model
from stoker.compiler.repository_writer import ServedTensor, config_name

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
        ShapeError: the batch is fixed, to another size than max_batch_size.
        CompileError: the model is invalid, or too large for one file.
    """
    request = job.request
    if request.flag is not BuildFlag.FP32 or request.batch_sizes:
        name = "batch_sizes" if request.batch_sizes else "build_flag" if request.build_flag is not None else "enable_fp16"
        raise OptionError(f"{name}: serving_type onnx serves the model as it is; use `stoker compile --precision` to convert it")
    model = checked(source.model, source.origin)
    sizes = input_sizes(model, request)
    _check_batch(sizes, request)
    if request.input_shapes:
        model = _with_sizes(model, sizes)
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
        raise ShapeError(f"tensor '{value.name}' has no shape with a batch that a client could be told")
    dims = tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else VARIABLE for dim in list(tensor.shape.dim)[1:])
    datatype = config_name(value.name, tensor.elem_type)
    return ServedTensor(value.name, datatype, dims, datatype)
