"""From an ONNX file of a version folder to `ModelFacts`."""

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import FileTensor, ModelFacts
from stoker.backends.onnx_files.element_types import SERVED, element_name
from stoker.backends.onnx_files.external_data import check_external_data
from stoker.backends.onnx_files.model_file import OnnxFile, OnnxValue, UnreadableOnnx, read_onnx_file


def declarations(files: ModelFiles, model_filename: str) -> OnnxFile:
    """Reads what the file declares, after a check that all its weights exist and lie inside the version folder.

    Raises:
        ModelLoadError: it is not there, is no ONNX file, or its external data is not where it may be.
    """
    try:
        file = read_onnx_file(files.path(model_filename))
    except UnreadableOnnx as error:
        raise ModelLoadError(f"'{model_filename}' is not a readable ONNX file: {error}") from error
    check_external_data(file.external, files, model_filename)
    return file


def facts_of(file: OnnxFile, model_filename: str) -> ModelFacts:
    """Inputs, outputs and remarks.

    Raises:
        ModelLoadError: an input or output is of a kind or element type that cannot be served.
    """
    notes = [versions_of(file)]
    if file.producer:
        notes.append(f"written by {file.producer}")
    if file.external:
        locations = sorted({tensor.location for tensor in file.external})
        notes.append(f"{len(file.external)} tensor(s) stored in {', '.join(locations)}")
    notes.extend(f"output '{name}' is served as the tensor [rows, classes] that its ZipMap reads" for name in file.zip_maps)
    notes.extend(f"output '{name}' is declared [1]; its classifier gives one element for each row" for name in file.corrected)
    return ModelFacts(
        inputs=tuple(_tensor("input", value, model_filename) for value in file.inputs),
        outputs=tuple(_tensor("output", value, model_filename) for value in file.outputs),
        notes=tuple(notes),
    )


def versions_of(file: OnnxFile) -> str:
    """Its IR version and opsets, for people."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in sorted(file.opsets.items())) or "none"
    return f"IR version {file.ir_version}; opsets: {opsets}"


def _tensor(side: str, value: OnnxValue, model_filename: str) -> FileTensor:
    where = f"'{model_filename}': {side} '{value.name}'"
    if value.kind != "tensor":
        raise ModelLoadError(f"{where} is {value.kind}; only dense tensors can be served")
    datatype = SERVED.get(value.element_type)
    if datatype is None:
        served = ", ".join(sorted(served.value for served in SERVED.values()))
        raise ModelLoadError(f"{where} has element type {element_name(value.element_type)}, which cannot be served; served types: {served}")
    return FileTensor(value.name, datatype, value.shape, labels=value.labels)
