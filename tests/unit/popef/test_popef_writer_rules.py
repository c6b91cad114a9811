"""The calls that a PopEF writer rejects, and the file after them."""

import dataclasses
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import Anchor, DataType, Metadata, Option, PopefError, TensorDataInfo, TensorInfo, TensorType
from stoker.backends.ipu.popef.writer import FileWriter, Writer
from tests.fakes.popef_samples import PAIR, sample_file, sample_metadata, write_sample

ANCHOR = Anchor(name="x", handle="h", tensor_info=PAIR, type=TensorType.INPUT)


def test_only_one_blob_may_be_open_at_a_time() -> None:
    writer = Writer(io.BytesIO())
    blob = writer.create_executable("a")
    for begin in (
        lambda: writer.create_executable("b"),
        lambda: writer.create_opaque_blob("o", "a"),
        lambda: writer.create_tensor_data(TensorDataInfo("t", PAIR)),
        lambda: writer.create_feed_data(TensorDataInfo("t", PAIR), []),
        lambda: writer.write(sample_metadata()),
        writer.close,
    ):
        with pytest.raises(PopefError, match=r"blob 0 \(POPLAR_EXECUTABLE 'a'\) is still open: only one blob may be open at a time"):
            begin()
    blob.close()
    blob.close()
    writer.create_executable("b").close()
    writer.close()
    writer.close()
    with pytest.raises(PopefError, match="the file is complete"):
        writer.create_executable("c")


def test_closed_blob_cannot_be_written() -> None:
    writer = Writer(io.BytesIO())
    blob = writer.create_executable("a")
    blob.close()
    with pytest.raises(PopefError, match="the blob is closed"):
        blob.stream.write(b"more")


@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        (lambda writer: writer.create_executable(""), "POPLAR_EXECUTABLE needs a name"),
        (lambda writer: writer.create_opaque_blob("", "a"), "OPAQUE needs a name"),
        (lambda writer: writer.create_opaque_blob("o", ""), "OPAQUE must name its executable"),
        (lambda writer: writer.create_tensor_data(TensorDataInfo("", PAIR)), "DATA_TENSOR needs a name"),
        (lambda writer: writer.create_executable("x" * 70_000), "at most 65536 are allowed"),
        (lambda writer: writer.create_executable("\ud800"), "a value cannot be stored"),
        (lambda writer: writer.create_executable("taken"), "there is a blob POPLAR_EXECUTABLE 'taken' already"),
    ],
)
def test_empty_existing_or_invalid_names_are_refused(begin: object, reason: str) -> None:
    writer = Writer(io.BytesIO())
    writer.create_executable("taken").close()
    with pytest.raises(PopefError, match=reason):
        begin(writer)  # type: ignore[operator]
    writer.create_executable("free").close()


@pytest.mark.parametrize("size", [0, 7, 9])
def test_tensor_data_of_another_size_are_removed_again(size: int) -> None:
    stream = io.BytesIO()
    writer = Writer(stream)
    blob = writer.create_tensor_data(TensorDataInfo("t", PAIR))
    blob.stream.write(bytes(size))
    with pytest.raises(PopefError, match=rf"blob 0 \(DATA_TENSOR 't'\): 1 x F32\[2\] take 8 bytes, but there are {size}"):
        blob.close()
    with writer.create_tensor_data(TensorDataInfo("t", PAIR)) as again:
        again.stream.write(bytes(8))
    writer.close()
    stream.seek(0)
    reader = Reader()
    reader.parse_stream(stream)
    assert len(reader.blobs()) == 1


def test_feed_sample_of_another_size_is_named() -> None:
    writer = Writer(io.BytesIO())
    with pytest.raises(PopefError, match=r"blob 0 \(DATA_FEED 'x'\): sample 1 has 12 bytes; 8 are expected"):
        writer.create_feed_data(TensorDataInfo("x", PAIR), [np.zeros(2, np.float32).data, np.zeros(3, np.float32).data])


def test_blob_whose_writing_fails_is_removed_again() -> None:
    stream = io.BytesIO()
    with Writer(stream) as writer:
        with suppress(RuntimeError), writer.create_executable("a", compress=True) as blob:
            blob.stream.write(bytes(1000))
            raise RuntimeError
        with writer.create_executable("a") as blob:
            blob.stream.write(b"second")
    stream.seek(0)
    reader = Reader()
    reader.parse_stream(stream)
    assert [each.data() for each in reader.executables()] == [b"second"]


def test_writer_left_by_an_exception_leaves_an_incomplete_file() -> None:
    stream = io.BytesIO()
    with suppress(RuntimeError), Writer(stream) as writer:
        writer.create_executable("a").close()
        raise RuntimeError
    stream.seek(0)
    with pytest.raises(PopefError, match="ends after 1 blobs without its closing record"):
        Reader().parse_stream(stream)


def test_full_stream_is_an_error_with_its_position() -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            if memoryview(data).nbytes > 100:  # type: ignore[arg-type]
                raise OSError(28, "No space left on device")
            return super().write(data)  # type: ignore[arg-type]

    blob = Writer(Full(), "full.popef").create_executable("a")
    with pytest.raises(PopefError, match=r"full.popef, offset \d+: cannot be written: .*No space left"):
        blob.stream.write(bytes(101))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"executable": ""}, "metadata must name their executable"),
        ({"replication_factor": 0}, "replication_factor is 0; at least 1"),
        ({"num_ipus": -1}, "num_ipus is -1; at least 1"),
        ({"device_iterations": 0}, "device_iterations is 0; at least 1"),
        ({"engine_options": (Option("", "1"),)}, "one of engine_options has no name"),
        ({"num_ipus": 1 << 40}, "a value cannot be stored"),
        ({"ipu_version": -2}, "a value cannot be stored"),
        ({"seed_handle": "\udc00"}, "a value cannot be stored"),
        ({"anchors": (ANCHOR, ANCHOR)}, "two anchors are named 'x'"),
        ({"anchors": (dataclasses.replace(ANCHOR, name=""),)}, "an anchor has no name"),
        ({"anchors": (dataclasses.replace(ANCHOR, programs=(-1,)),)}, "a value cannot be stored"),
        (
            {"anchors": (dataclasses.replace(ANCHOR, tensor_info=TensorInfo((2, -1), DataType.F32)),)},
            r"'x' has the impossible shape \[2, -1\]",
        ),
        ({"anchors": (dataclasses.replace(ANCHOR, tensor_info=TensorInfo((1 << 62, 1 << 62), DataType.F32)),)}, "impossible shape"),
        ({"anchors": (dataclasses.replace(ANCHOR, handle="h" * (1 << 22)),)}, "at most 4194304 are allowed"),
    ],
)
def test_unreadable_metadata_are_not_written(change: dict[str, object], reason: str) -> None:
    metadata: Metadata = dataclasses.replace(sample_metadata(), **change)  # type: ignore[arg-type]
    with pytest.raises(PopefError, match=reason):
        Writer(io.BytesIO()).write(metadata)


def test_two_metadata_of_one_executable_are_refused() -> None:
    writer = Writer(io.BytesIO())
    writer.write(sample_metadata())
    with pytest.raises(PopefError, match="there is a blob METADATA 'pair' of executable 'pair' already"):
        writer.write(sample_metadata())


class Sluggish(io.RawIOBase):
    """A stream that accepts ten bytes at a time, as an unbuffered one may."""

    def __init__(self, taken_at_once: int | None = 10) -> None:
        self.inner = io.BytesIO()
        self._taken_at_once = taken_at_once

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.inner.seek(offset, whence)

    def tell(self) -> int:
        return self.inner.tell()

    def write(self, data: Any) -> int | None:
        if not len(data):
            return 0
        return self._taken_at_once and self.inner.write(bytes(data)[: self._taken_at_once])


def test_partial_writes_of_a_stream_are_continued() -> None:
    stream = Sluggish()
    with Writer(stream) as writer:  # type: ignore[arg-type]
        write_sample(writer)
    assert stream.inner.getvalue() == sample_file()


def test_stream_that_writes_nothing_is_an_error() -> None:
    with pytest.raises(PopefError, match="offset 0: cannot be written: the stream takes no more"):
        Writer(Sluggish(None)).create_executable("a")  # type: ignore[arg-type]


def test_unreadable_opaque_content_is_removed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.backends.ipu.popef.messages.MAX_INFLATED_OPAQUE_BYTES", 99)
    blob = Writer(io.BytesIO()).create_opaque_blob("o", "e", compress=True)
    blob.write(bytes(100))
    with pytest.raises(PopefError, match=r"blob 0 \(OPAQUE 'o'\): 100 bytes of opaque content are compressed; above 99"):
        blob.close()
    assert not blob.is_complete


@pytest.mark.parametrize("path", ["", "a\0b", "/nonexistent/folder/m.popef"])
def test_unwritable_file_is_a_file_error(path: str) -> None:
    with pytest.raises(PopefError, match="cannot be written"):
        FileWriter(path)


def test_full_disk_at_completion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BufferedWriter):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode: Full(io.FileIO(path, mode)))
    with pytest.raises(PopefError, match="cannot be written: No space left"), FileWriter(tmp_path / "m.popef") as writer:
        writer.create_executable("a").close()
    assert list(tmp_path.iterdir()) == []
