"""Only the start of a file is read, and entities that could expand are refused."""

from pathlib import Path

import pytest

from stoker.backends.openvino.ir_files import UnreadableXml, read_root

#: Each entity holds ten of the one before: the last would be 10 GB.
BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE net [<!ENTITY e0 "0123456789">'
    + b"".join(b'<!ENTITY e%d "%s">' % (level, b"&e%d;" % (level - 1) * 10) for level in range(1, 10))
    + b']><net version="&e9;"></net>'
)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "model.xml"
    path.write_bytes(content)
    return path


def test_root_is_found_whatever_follows_it(tmp_path: Path) -> None:
    path = written(tmp_path, b'<?xml version="1.0"?>\n<!-- made by hand -->\n<net name="g" version="11">\n<layers><<<')
    assert read_root(path) == ("net", {"name": "g", "version": "11"})


def test_root_behind_a_long_prolog_is_found(tmp_path: Path) -> None:
    assert read_root(written(tmp_path, b"<!--" + b" " * 100_000 + b"--><net/>")) == ("net", {})


@pytest.mark.parametrize(
    "content",
    [
        BOMB,
        b"<!DOCTYPE net><net version='11'/>",
        b"<!DOCTYPE net SYSTEM 'file:///etc/passwd'><net version='11'/>",
    ],
)
def test_document_type_is_refused_before_entities_are_expanded(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UnreadableXml, match="it declares a document type, 'net', and may have none"):
        read_root(written(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "text"), [(b"", "no element found"), (b"<!-- only -->", "no element found"), (b"PK\x03\x04", "not well-formed")]
)
def test_text_without_a_root_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    with pytest.raises(UnreadableXml, match=text):
        read_root(written(tmp_path, content))


@pytest.mark.parametrize("encoding", ["shift_jis", "rot13", "idna", "punycode", "unheard-of", "long" * 1000])
def test_unreadable_encoding_is_refused_in_one_line(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(UnreadableXml, match="its encoding cannot be read: ") as caught:
        read_root(written(tmp_path, f'<?xml version="1.0" encoding="{encoding}"?><net version="11"/>'.encode()))
    assert len(str(caught.value)) < 200
