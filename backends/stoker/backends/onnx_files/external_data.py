"""Weights beside the model file: only from inside the version folder, and only if they are all there."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.onnx_files.model_file import ExternalTensor


def check_external_data(tensors: Iterable[ExternalTensor], files: ModelFiles, model_filename: str) -> None:
    """Refuses tensors stored elsewhere than in `files`, relative to the model file as ONNX has it.

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
