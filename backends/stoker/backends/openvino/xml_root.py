"""The root element of an XML file, without reading further than its start."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

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
    parser.StartDoctypeDeclHandler = _refuse_document_type
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


def _refuse_document_type(name: str, system_id: str | None, public_id: str | None, has_internal_subset: bool) -> NoReturn:
    raise UnreadableXml(f"it declares a document type, '{name[:80]}', and may have none")
