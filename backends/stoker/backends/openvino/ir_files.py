"""Checks an OpenVINO IR file, an .xml file with its .bin, before OpenVINO reads it."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NoReturn
from xml.parsers import expat

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles

_CHUNK_BYTES = 16 * 1024
#: Characters of a codec's complaint, which repeats the encoding's name.
_SHOWN = 120


class UnreadableXml(Exception):
    """The file has no root that could be read; the text says why."""


class _Found(Exception):
    """Leaves the parser: the root was met."""


def read_root(path: Path) -> tuple[str, Mapping[str, str]]:
    """The name and the attributes of the root.

    Raises:
        UnreadableXml: it is empty, is not XML, is in an encoding that cannot be read (expat reads UTF-8, UTF-16 and those of one byte a
            character), or declares a document type: that is where entities are defined, of which a few lines unfold to gigabytes, and no
            format that is read here has one.
    """
    found: list[tuple[str, Mapping[str, str]]] = []

    def root_begins(name: str, attributes: dict[str, str]) -> NoReturn:
        found.append((name, attributes))
        raise _Found

    parser = expat.ParserCreate()
    parser.StartElementHandler = root_begins
    parser.StartDoctypeDeclHandler = _reject_document_type
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                parser.Parse(chunk)
        parser.Parse(b"", True)
    except _Found:
        return found[0]
    except expat.ExpatError as error:
        raise UnreadableXml(str(error)) from error
    except (LookupError, ValueError) as error:  # what Python's codecs say of an encoding that expat has asked them for
        raise UnreadableXml(f"its encoding cannot be read: {str(error)[:_SHOWN]}") from error
    raise UnreadableXml("it has no root element")


def _reject_document_type(name: str, system_id: str | None, public_id: str | None, has_internal_subset: bool) -> NoReturn:
    raise UnreadableXml(f"it declares a document type, '{name[:80]}', and may have none")


#: Versions of the IR format that this code was written against; OpenVINO reads no others.
_IR_VERSIONS = ("10", "11")
_ROOT = "net"
#: Bytes of an .xml file: the graph alone, without weights. The largest known have some tens of megabytes.
MAX_XML_BYTES = 512 * 1024 * 1024


def weights_file(model_filename: str) -> str:
    """The name of the .bin file that belongs to an .xml file."""
    return PurePosixPath(model_filename).with_suffix(".bin").as_posix()


def check_ir(files: ModelFiles, model_filename: str) -> None:
    """Rejects what OpenVINO would take for some other format and try all its front ends on.

    Raises:
        ModelLoadError: it is no IR of a version that is read, or its .bin file is missing.
    """
    path = files.path(model_filename)
    if files.sizes_bytes[PurePosixPath(model_filename).as_posix()] > MAX_XML_BYTES:
        raise ModelLoadError(f"'{model_filename}' is larger than {MAX_XML_BYTES} bytes: an IR file holds a graph, without weights")
    try:
        root, attributes = read_root(path)
    except UnreadableXml as error:
        raise ModelLoadError(f"'{model_filename}' is not a readable OpenVINO IR file: {error}") from error
    version = attributes.get("version", "none")
    if root != _ROOT or version not in _IR_VERSIONS:
        raise ModelLoadError(
            f"'{model_filename}' is not OpenVINO IR of version {' or '.join(_IR_VERSIONS)}: "
            f"its root is <{root[:80]}> of version {version[:40]}"
        )
    weights = weights_file(model_filename)
    if weights not in files.sizes_bytes:
        held = ", ".join(sorted(files.sizes_bytes)[:10])
        raise ModelLoadError(
            f"'{model_filename}' needs its weights in '{weights}', which the version folder does not have; it holds: {held}"
        )
