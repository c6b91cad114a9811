"""Edges to an ONNX model in memory: from ONNX files and from TensorFlow's forms. PyTorch's are in `torch_export`."""

from model_compiler.edges import Job
from model_compiler.models import FrozenGraphFile, OnnxFile, OnnxModel, SavedModelFolder
from stoker.compiler.convert.source import TensorflowOptions, read_onnx, read_tensorflow

#: Opset that TensorFlow models are exported to, where the request names none: the newest that tf2onnx 1.16 writes.
_TENSORFLOW_OPSET = 18


def read_onnx_file(source: OnnxFile, _job: Job) -> OnnxModel:
    """Reads the file and its external data.

    Raises:
        CompileError: it is no ONNX file.
    """
    return OnnxModel(read_onnx(source.path), str(source.path))


def import_saved_model(source: SavedModelFolder, job: Job) -> OnnxModel:
    """Converts a SavedModel by tf2onnx.

    Raises:
        CompileError: tf2onnx or TensorFlow is not installed, or fails.
    """
    request = job.request
    options = TensorflowOptions(
        saved_model=True,
        signature_def=request.signature_keys,
        tag=",".join(request.saved_model_tags) or None,
        inputs=",".join(request.input_names) or None,
        outputs=",".join(request.output_names) or None,
        opset=request.opset_version or _TENSORFLOW_OPSET,
    )
    return OnnxModel(read_tensorflow(source.path, options), str(source.path))


def import_frozen_graph(source: FrozenGraphFile, job: Job) -> OnnxModel:
    """Converts a frozen graph by tf2onnx.

    Raises:
        CompileError: as `import_saved_model`.
    """
    request = job.request
    options = TensorflowOptions(
        inputs=",".join(request.input_names),
        outputs=",".join(request.output_names),
        opset=request.opset_version or _TENSORFLOW_OPSET,
    )
    return OnnxModel(read_tensorflow(source.path, options), str(source.path))
