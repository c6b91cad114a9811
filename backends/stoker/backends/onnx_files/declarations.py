"""Reads `ModelFacts` from an ONNX file of a version folder: element types, external data, remarks."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import FileTensor, ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx_files.model_file import ExternalTensor, OnnxFile, OnnxValue, UnreadableOnnx, read_onnx_file

#: KServe datatypes by ONNX's number of the element type.
SERVED: dict[int, DataType] = {
    1: DataType.FP32, 2: DataType.UINT8, 3: DataType.INT8, 4: DataType.UINT16, 5: DataType.INT16, 6: DataType.INT32, 7: DataType.INT64,
    8: DataType.BYTES, 9: DataType.BOOL, 10: DataType.FP16, 11: DataType.FP64, 12: DataType.UINT32, 13: DataType.UINT64, 16: DataType.BF16,
}  # fmt: skip

_OTHERS = {
    14: "COMPLEX64", 15: "COMPLEX128", 17: "FLOAT8E4M3FN", 18: "FLOAT8E4M3FNUZ", 19: "FLOAT8E5M2", 20: "FLOAT8E5M2FNUZ", 21: "UINT4",
    22: "INT4", 23: "FLOAT4E2M1", 24: "FLOAT8E8M0", 25: "UINT2", 26: "INT2", 27: "FLOAT6E2M3", 28: "FLOAT6E3M2",
}  # fmt: skip


def element_name(number: int) -> str:
    """ONNX's name of an element type, for messages about types that are not served."""
    return _OTHERS.get(number, f"number {number}")


def check_external_data(tensors: Iterable[ExternalTensor], files: ModelFiles, model_filename: str) -> None:
    """Rejects tensors stored elsewhere than in `files`, relative to the model file as ONNX has it.

    Raises:
        ModelLoadError: a location is absolute, climbs with `..`, is no file of the version, or is too short for the tensor.
    """
    folder = PurePosixPath(model_filename).parent
    for tensor in tensors:
        where = f"'{model_filename}': tensor '{tensor.name}' is stored in external file '{tensor.location}'"
        path = PurePosixPath(tensor.location)
        if not tensor.location:
            raise ModelLoadError(f"'{model_filename}': tensor '{tensor.name}' is stored outside, but no location is given")
        if path.is_absolute() or ".." in path.parts:
            raise ModelLoadError(f"{where}, which leaves the version folder; external data must lie inside it")
        size = files.sizes_bytes.get((folder / path).as_posix())
        if size is None:
            held = ", ".join(sorted(files.sizes_bytes)[:10]) or "nothing"
            raise ModelLoadError(f"{where}, which is not in the version folder; it holds: {held}")
        if tensor.offset + (tensor.length or 0) > size:
            raise ModelLoadError(
                f"{where}, bytes {tensor.offset} to {tensor.offset + (tensor.length or 0)}, but that file has {size}: not copied whole?"
            )


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
    """Returns the IR version and opsets as text."""
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
