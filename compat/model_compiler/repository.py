"""Puts a compiled model where Adlik's compiler puts it: a version in the repository, and the same as a zip file beside the model's folder.

<export_path>/<model>/config.pbtxt
<export_path>/<model>/<version>/model.exec
<export_path>/<model>_<version>.zip       holds `<version>/model.exec` and `config.pbtxt`
"""

import zipfile
from pathlib import Path

from model_compiler.models import ServableModel
from model_compiler.request import CompileRequest
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.output_files import written_whole
from stoker.compiler.repository_writer import CONFIG_NAME, ServedModel, write_served_versions

#: The earliest time that zip files know, and rights that do not depend on who packed: the same model gives the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)
_RIGHTS = 0o100644 << 16
_UNIX = 3
_CHUNK_BYTES = 1 << 20


def check_version_is_free(request: CompileRequest) -> None:
    """Raises:
    OptionError: the version that `request` names exists. Asked before anything is compiled.
    """
    if request.version is not None and (request.repository / request.model_name / str(request.version)).exists():
        raise OptionError(
            f"version {request.version}: {request.repository / request.model_name / str(request.version)} exists, and versions are never "
            "overwritten; leave version out to take the next one"
        )


def save_model(model: ServableModel, request: CompileRequest) -> Path:
    """Writes the version and then the zip file, each whole or not at all, and returns the zip file.

    Raises:
        OptionError: the version exists.
        CompileError: the config.pbtxt that is there does not agree with the model, or nothing can be written.
    """
    served = ServedModel(name=request.model_name, config=model.config, inputs=model.inputs, outputs=model.outputs)
    (version,) = write_served_versions(request.repository, [served], request.version, model.path, filename=model.filename)
    path = request.repository / f"{request.model_name}_{version.name}.zip"
    try:
        _pack(version, path)
    except CompileError as error:
        raise CompileError(f"{error}; version {version.name} is written and can be served, only its zip file is missing") from error
    return path


def _pack(version: Path, path: Path) -> None:
    files = sorted(each for each in version.rglob("*") if each.is_file())
    members = [(each.relative_to(version.parent).as_posix(), each) for each in files]
    members.append((CONFIG_NAME, version.parent / CONFIG_NAME))
    # Weights do not get smaller by deflating, and what is stored is the same whatever version of zlib packs it.
    with written_whole(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
        for name, source in members:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr, entry.create_system = _RIGHTS, _UNIX
            entry.file_size = source.stat().st_size
            with source.open("rb") as reading, archive.open(entry, "w") as writing:
                while chunk := reading.read(_CHUNK_BYTES):
                    writing.write(chunk)
