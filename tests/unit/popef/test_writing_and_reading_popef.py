"""PopEF files are read as they were written."""

import dataclasses
import gc
import io
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.popef.model import ModelBuilder, write_model
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import BlobType, DataType, PopefError, TensorDataInfo, TensorInfo
from stoker.backends.ipu.popef.writer import FileWriter, Mode, Writer
from tests.fakes.popef_samples import PAIR, file_of, read_all, sample_file, sample_metadata, sample_program, samples, write_sample


def reader_of(*files: bytes) -> Reader:
    reader = Reader()
    for data in files:
        reader.parse_stream(io.BytesIO(data))
    return reader


@pytest.mark.parametrize("compress", [False, True])
def test_every_kind_of_blob_round_trips(compress: bool) -> None:
    model = read_all(sample_file(compress=compress))
    assert model.metadata == sample_metadata()
    assert model.program() == sample_program()
    assert model.tensors["w"].info == TensorDataInfo("w", PAIR)
    np.testing.assert_array_equal(model.tensors["w"].array(), np.array([1, 2], np.float32))
    assert len(model.feeds["x"]) == 3
    np.testing.assert_array_equal(model.feeds["x"].array(), np.arange(6, dtype=np.float32).reshape(3, 2))
    assert model.opaques == {"fusion": b'{"graph0": [1]}'}


def test_same_blobs_give_the_same_bytes() -> None:
    assert sample_file() == sample_file()
    assert sample_file(compress=True) == sample_file(compress=True)


def test_compression_shrinks_a_repetitive_content_and_is_reversible() -> None:
    def write(writer: Writer) -> None:
        with writer.create_executable("zeros", compress=True) as blob:
            for _ in range(40):
                blob.stream.write(bytes(100_000))

    data = file_of(write)
    (executable,) = reader_of(data).executables()
    assert len(data) < 10_000
    assert executable.size_in_bytes == 4_000_000
    assert executable.data() == bytes(4_000_000)


def test_file_that_begins_within_a_stream_is_read_from_there() -> None:
    stream = io.BytesIO()
    stream.write(b"before")
    with Writer(stream) as writer:
        write_sample(writer)
    stream.seek(6)
    reader = Reader()
    reader.parse_stream(stream)
    reader.verify()
    assert reader.blobs()[0].offset == 0


def test_one_file_holds_several_models() -> None:
    reader = reader_of(file_of(samples("a", "b")))
    assert ModelBuilder(reader).create_model("b").metadata == sample_metadata("b")
    with pytest.raises(PopefError, match="several models: name one of the executables 'a', 'b'"):
        ModelBuilder(reader).create_model()
    with pytest.raises(PopefError, match="no metadata of executable 'c'; there are: 'a', 'b'"):
        ModelBuilder(reader).create_model("c")


def test_one_model_may_be_in_several_files_in_any_order() -> None:
    def executable(writer: Writer) -> None:
        with writer.create_executable("pair") as blob:
            blob.stream.write(b"code")

    def data(writer: Writer) -> None:
        with writer.create_tensor_data(TensorDataInfo("w", PAIR)) as blob:
            blob.stream.write(bytes(8))

    parts = (file_of(data), file_of(lambda writer: writer.write(sample_metadata())), file_of(executable))
    model = ModelBuilder(reader_of(*parts)).create_model()
    assert model.executable.data() == b"code"
    assert list(model.tensors) == ["w"]


def test_unowned_data_belongs_to_every_model_with_such_an_anchor_without_its_own() -> None:
    def write(writer: Writer) -> None:
        for name in ("a", "b"):
            with writer.create_executable(name):
                pass
            writer.write(sample_metadata(name))
        for owner, value in (("", 1), ("b", 2)):
            with writer.create_tensor_data(TensorDataInfo("w", PAIR), owner) as blob:
                blob.stream.write(np.full(2, value, np.float32).data)
        with writer.create_tensor_data(TensorDataInfo("stranger", PAIR)) as blob:
            blob.stream.write(bytes(8))

    builder = ModelBuilder(reader_of(file_of(write)))
    assert {name: builder.create_model(name).tensors["w"].array()[0] for name in ("a", "b")} == {"a": 1, "b": 2}
    assert "stranger" not in builder.create_model("a").tensors


def test_rewritten_model_has_its_current_data(tmp_path: Path) -> None:
    builder = ModelBuilder(reader_of(file_of(samples("other", "pair", compress=True))))
    model = dataclasses.replace(builder.create_model("pair"), opaques={"added": b"now"})
    path = tmp_path / "again.popef"
    with FileWriter(path) as writer:
        write_model(model, writer)
    again = read_all(path.read_bytes())
    assert again.metadata == model.metadata
    assert again.opaques == {"added": b"now"}
    np.testing.assert_array_equal(again.feeds["x"].array(), model.feeds["x"].array())
    assert again.tensors["w"].data() == model.tensors["w"].data()


def test_metadata_without_their_executable_are_no_model() -> None:
    reader = reader_of(file_of(lambda writer: writer.write(sample_metadata())))
    with pytest.raises(PopefError, match="metadata of executable 'pair', but no such executable blob"):
        ModelBuilder(reader).create_model()


def test_file_without_metadata_is_no_model() -> None:
    with pytest.raises(PopefError, match="no metadata, so no model"):
        ModelBuilder(reader_of(file_of(lambda writer: None))).create_model()


def test_repeated_blob_in_a_second_file_is_refused_with_the_whole_file() -> None:
    reader = reader_of(sample_file())
    before = reader.blobs()

    def write(writer: Writer) -> None:
        writer.create_executable("other").close()
        writer.write(sample_metadata())

    with pytest.raises(PopefError, match=r"blob 1 \(METADATA 'pair'\).*the same blob is in <stream> at offset"):
        reader.parse_stream(io.BytesIO(file_of(write)))
    assert reader.blobs() == before


def test_scalars_and_empty_tensors_have_data_too() -> None:
    scalar, empty = TensorInfo((), DataType.F16), TensorInfo((0, 3), DataType.S32)

    def write(writer: Writer) -> None:
        for name, info, value in (("scalar", scalar, np.array(2, np.float16)), ("empty", empty, np.zeros((0, 3), np.int32))):
            with writer.create_tensor_data(TensorDataInfo(name, info)) as blob:
                blob.stream.write(value.data)

    found = {tensor.name: tensor.array() for tensor in reader_of(file_of(write)).tensors()}
    assert found["scalar"].shape == ()
    assert found["scalar"] == 2
    assert found["empty"].shape == (0, 3)


def test_array_that_is_not_contiguous_is_written_in_its_own_order() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3).T

    def write(writer: Writer) -> None:
        with writer.create_tensor_data(TensorDataInfo("t", TensorInfo((3, 2), DataType.F32))) as blob:
            blob.stream.write(values.data)

    np.testing.assert_array_equal(reader_of(file_of(write)).tensors()[0].array(), values)


def test_two_streams_of_one_file_are_read_in_parallel() -> None:
    contents = {name: bytes([number]) * 3_000_000 for number, name in enumerate("ab", 1)}

    def write(writer: Writer) -> None:
        for name, content in contents.items():
            with writer.create_executable(name, compress=name == "b") as blob:
                blob.stream.write(content)

    first, second = (each.get_standalone_executable_stream() for each in reader_of(file_of(write)).executables())
    read = {"a": b"", "b": b""}
    with first, second:
        while len(read["b"]) < 3_000_000:
            read["a"] += first.read(700_000)
            read["b"] += second.read(700_000)
    assert read == contents


def test_several_threads_read_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pair.popef"
    with FileWriter(path) as writer:
        write_sample(writer)
    reader = Reader()
    reader.parse_file(path)
    model = ModelBuilder(reader).create_model()
    programs: list[object] = []
    threads = [threading.Thread(target=lambda: programs.append(model.program())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert programs == [sample_program()] * 8


def test_found_blobs_stay_readable_after_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pair.popef"
    with FileWriter(path) as writer:
        write_sample(writer)
    reader = Reader()
    reader.parse_file(path)
    with FileWriter(path) as writer:
        writer.create_executable("new").close()
    assert ModelBuilder(reader).create_model().program() == sample_program()


def test_file_truncated_after_its_headers_were_read_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pair.popef"
    path.write_bytes(sample_file())
    reader = Reader()
    reader.parse_file(path)
    with path.open("r+b") as stream:
        stream.truncate(60)
    with pytest.raises(PopefError, match="shorter since it was opened"):
        reader.verify()


DESCRIPTORS = Path("/proc/self/fd")


def open_files() -> list[Path]:
    """The files that this process has open."""
    return [found.readlink() for found in DESCRIPTORS.iterdir() if found.is_symlink()]


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="this system does not list open files")
def test_file_is_closed_with_the_last_reference_to_it(tmp_path: Path) -> None:
    path = tmp_path / "pair.popef"
    path.write_bytes(sample_file())
    reader = Reader()
    reader.parse_file(path)
    assert path in open_files()
    del reader
    gc.collect()
    assert path not in open_files()


@pytest.mark.parametrize("mode", list(Mode))
def test_failing_writer_leaves_only_the_old_file(tmp_path: Path, mode: Mode) -> None:
    path = tmp_path / "pair.popef"
    path.write_bytes(sample_file())
    with suppress(RuntimeError), FileWriter(path, mode) as writer:
        writer.create_executable("half")
        raise RuntimeError
    assert [each.name for each in tmp_path.iterdir()] == ["pair.popef"]
    assert path.read_bytes() == sample_file()


def test_old_file_exists_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "pair.popef"
    path.write_bytes(b"old")
    with FileWriter(path) as writer:
        write_sample(writer)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == sample_file()


def test_appending_keeps_existing_blobs_and_refuses_existing_names(tmp_path: Path) -> None:
    path = tmp_path / "pair.popef"
    path.write_bytes(sample_file(compress=True))
    path.chmod(0o640)
    with FileWriter(path, Mode.APPEND) as writer:
        with pytest.raises(PopefError, match="there is a blob OPAQUE 'fusion' of executable 'pair' already"):
            writer.create_opaque_blob("fusion", "pair")
        with writer.create_opaque_blob("more", "pair") as blob:
            blob.stream.write(b"bytes")
    assert read_all(path.read_bytes()).opaques == {"fusion": b'{"graph0": [1]}', "more": b"bytes"}
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none", "cannot be opened: No such file"),
        (".", "is no regular file"),
        ("pipe", "is no regular file"),
        ("a\0b", "cannot be opened: embedded null"),
    ],
)
def test_unopenable_file_is_refused_by_name(tmp_path: Path, path: str, reason: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PopefError, match=reason) as caught:
        Reader().parse_file(f"{tmp_path}/{path}")
    assert caught.value.path == f"{tmp_path}/{path}"


def test_unwritable_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PopefError, match=r"none/x\.popef: cannot be written: No such file or directory"):
        FileWriter(tmp_path / "none" / "x.popef")


def test_text_streams_and_unseekable_streams_are_refused(tmp_path: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    closed = io.BytesIO()
    closed.close()
    for wrong, reason in (
        (io.StringIO("x"), "binary stream is needed"),
        (Pipe(b"x"), "can seek"),
        (closed, "closed file"),
        (object(), "stream"),
    ):
        with pytest.raises(PopefError, match=reason):
            Reader().parse_stream(wrong)  # type: ignore[arg-type]
        with pytest.raises(PopefError, match=reason):
            Writer(wrong)  # type: ignore[arg-type]
    with (tmp_path / "x").open("wb") as write_only, pytest.raises(PopefError, match="cannot be read as a stream"):
        Reader().parse_stream(write_only)


def test_blob_types_are_walked_in_the_order_of_writing() -> None:
    assert [blob.type for blob in reader_of(sample_file()).blobs()] == [
        BlobType.POPLAR_EXECUTABLE,
        BlobType.METADATA,
        BlobType.DATA_TENSOR,
        BlobType.DATA_FEED,
        BlobType.OPAQUE,
    ]
