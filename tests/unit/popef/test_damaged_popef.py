"""Damaged, truncated and synthetic PopEF files: only errors with a position, and no memory for unverified sizes."""

import contextlib
import dataclasses
import hashlib
import io
import itertools
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.containers.framing import (
    CLOSING_BYTES,
    HEADER_BYTES,
    MAX_INFO_BYTES,
    ClosingRecord,
    Compression,
    RecordHeader,
    check_wire,
)
from stoker.backends.ipu.popef.messages import (
    CONTAINER_VERSION,
    MAX_BLOBS,
    POPEF,
    BlobInfo,
    decode_metadata,
    encode_metadata,
)
from stoker.backends.ipu.popef.model import ModelBuilder
from stoker.backends.ipu.popef.pb import popef_pb2 as pb
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import BlobType, PopefError, TensorDataInfo
from stoker.backends.ipu.popef.writer import Writer
from tests.fakes.popef_samples import PAIR, file_of, read_all, sample_file, sample_metadata, write_sample

SAMPLES = {compress: sample_file(compress=compress) for compress in (False, True)}


def refusal(data: bytes) -> PopefError:
    with pytest.raises(PopefError) as caught:
        read_all(data)
    return caught.value


def made_up(blobs: list[tuple[RecordHeader, bytes, bytes]]) -> bytes:
    """A file of these headers, infos and contents with correct checksums of headers and closing record, whatever their content."""
    rows = [header.pack(POPEF) + info + content for header, info, content in blobs]
    digest = hashlib.sha256(b"".join(header.pack(POPEF) for header, _, _ in blobs)).digest()
    body = b"".join(rows)
    return body + ClosingRecord(records=len(blobs), total_bytes=len(body) + CLOSING_BYTES, digest=digest).pack(POPEF)


def opaque(content: bytes = b"content", **claims: object) -> tuple[RecordHeader, bytes, bytes]:
    """An opaque blob whose header may have false claims."""
    info = BlobInfo(name="o", executable="e").serialized()
    header = RecordHeader(
        kind=BlobType.OPAQUE,
        compression=Compression.NONE,
        info_bytes=len(info),
        stored_bytes=len(content),
        content_bytes=len(content),
        info_crc=zlib.crc32(info),
        content_crc=zlib.crc32(content),
    )
    return dataclasses.replace(header, **claims), info, content  # type: ignore[arg-type]


@pytest.mark.parametrize("compress", [False, True])
def test_file_truncated_at_any_byte_is_refused_with_blob_and_offset(compress: bool) -> None:
    data = SAMPLES[compress]
    for length in range(len(data)):
        error = refusal(data[:length])
        assert error.blob, length
        assert error.offset is not None
        assert error.offset <= length


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("compress", [False, True])
def test_file_with_any_byte_changed_is_refused_with_blob_and_offset(compress: bool, flip: int) -> None:
    data = SAMPLES[compress]
    for at in range(len(data)):
        error = refusal(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
        assert error.blob, at
        assert error.offset is not None
        assert error.offset <= at


def test_error_names_the_damaged_blob_and_its_position() -> None:
    data = bytearray(SAMPLES[False])
    at = data.index(b'{"graph0"')
    data[at] ^= 1
    error = refusal(bytes(data))
    assert error.blob == "blob 4 (OPAQUE 'fusion')"
    assert error.offset == at
    assert str(error).startswith(f"<stream>, blob 4 (OPAQUE 'fusion'), offset {at}: the content's checksum is ")


def test_damaged_program_is_refused_by_its_checksum_before_it_is_parsed() -> None:
    data = bytearray(SAMPLES[False])
    data[data.index(b"IPUP") + 9] ^= 0xFF
    reader = Reader()
    reader.parse_stream(io.BytesIO(data))
    with pytest.raises(PopefError, match=r"blob 0 \(POPLAR_EXECUTABLE 'pair'\), offset \d+: the content's checksum is"):
        ModelBuilder(reader).create_model().program()


def test_closing_record_with_another_size_is_refused() -> None:
    data = SAMPLES[False]
    record = ClosingRecord.unpack(data[-CLOSING_BYTES:], POPEF)
    error = refusal(data[:-CLOSING_BYTES] + dataclasses.replace(record, total_bytes=len(data) + 1).pack(POPEF))
    assert f"ends the file at {len(data) + 1}, but it has {len(data)} bytes" in error.reason


def test_file_truncated_between_two_blobs_is_incomplete() -> None:
    reader = Reader()
    reader.parse_stream(io.BytesIO(SAMPLES[False]))
    for blob in reader.blobs()[1:]:
        error = refusal(SAMPLES[False][: blob.offset])
        assert f"the file ends after {blob.index} blobs without its closing record" in error.reason


def test_removed_swapped_or_added_blobs_are_detected() -> None:
    reader = Reader()
    reader.parse_stream(io.BytesIO(SAMPLES[False]))
    starts = [*(blob.offset for blob in reader.blobs()), len(SAMPLES[False]) - CLOSING_BYTES]
    rows = [SAMPLES[False][start:end] for start, end in itertools.pairwise(starts)]
    closing = SAMPLES[False][starts[-1] :]
    assert "says 5 blobs, but there are 4" in refusal(b"".join(rows[:-1]) + closing).reason
    exchanged = [rows[0], rows[1], rows[3], rows[2], rows[4]]
    assert "digest is not that of the headers" in refusal(b"".join(exchanged) + closing).reason
    assert refusal(SAMPLES[False] + SAMPLES[False]).blob == "closing record"
    assert refusal(SAMPLES[False] + b"\n").blob == "closing record"


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    refusal(data)


def test_other_files_are_refused_by_their_first_bytes() -> None:
    assert "neither a blob nor the closing record begins here: found 08 07 12" in refusal(b"\x08\x07\x12" + bytes(200)).reason
    assert refusal(b"").reason == "the file is empty"


def test_another_container_version_is_named() -> None:
    data = bytearray(SAMPLES[False])
    data[8:10] = (CONTAINER_VERSION + 1).to_bytes(2, "little")
    assert "container version 2; this build reads version 1: compile the model again" in refusal(bytes(data)).reason


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (opaque(stored_bytes=1 << 62, content_bytes=1 << 62), "4611686018427387904 bytes of content begin here, but the file ends at"),
        (opaque(content_bytes=1 << 62), "7 bytes stored but 4611686018427387904 of content, without compression"),
        (opaque(info_bytes=MAX_INFO_BYTES + 1), "65537 bytes of info; at most 65536"),
        (opaque(info_bytes=60_000), "60000 bytes are expected here, but the file ends at"),
        (
            opaque(compression=Compression.ZLIB, content_bytes=1 << 62),
            "7 compressed bytes hold 4611686018427387904, which zlib cannot reach",
        ),
        (opaque(kind=BlobType.METADATA, compression=Compression.ZLIB), "metadata are never compressed"),
        (
            opaque(stored_bytes=1 << 20, content_bytes=(1 << 26) + 1, compression=Compression.ZLIB),
            "67108865 bytes of opaque content are compressed; above 67108864 they must not be",
        ),
        (opaque(compression=Compression.ZLIB), "the compressed content is damaged"),
        (opaque(zlib.compress(bytes(100)), compression=Compression.ZLIB, content_bytes=99), "decompresses to more than the 99 bytes"),
        (
            opaque(zlib.compress(bytes(100)), compression=Compression.ZLIB, content_bytes=101),
            "decompresses to 100 bytes, the header says 101",
        ),
        (opaque(zlib.compress(b"ab")[:-1], compression=Compression.ZLIB, content_bytes=2), "ends before its end mark, after 2 of 2 bytes"),
        (opaque(zlib.compress(b"ab") + b"x", compression=Compression.ZLIB, content_bytes=2), "something follows the compressed content"),
        (opaque(kind=BlobType.DATA_TENSOR), "DATA_TENSOR needs a shape and a data type"),
        (opaque(kind=BlobType.METADATA), "not a Metadata message|wire type|ends inside"),
    ],
)
def test_invalid_headers_are_refused(blob: tuple[RecordHeader, bytes, bytes], reason: str) -> None:
    with pytest.raises(PopefError, match=reason) as caught:
        read_all(made_up([blob]))
    assert caught.value.blob.startswith("blob 0")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "kind": st.sampled_from(BlobType),
            "compression": st.sampled_from(Compression),
            "info_bytes": st.integers(0, 2**32 - 1),
            "stored_bytes": st.integers(0, 2**64 - 1) | st.integers(0, 20),
            "content_bytes": st.integers(0, 2**64 - 1) | st.integers(0, 20),
            "content_crc": st.integers(0, 2**32 - 1),
        },
    )
)
def test_any_header_is_read_or_refused(claims: dict[str, Any]) -> None:
    reader = Reader()
    with contextlib.suppress(PopefError):
        reader.parse_stream(io.BytesIO(made_up([opaque(**claims)])))
        reader.verify()
    assert len(reader.blobs()) <= 1


@given(st.binary(max_size=60) | st.builds(lambda at, with_: (at, with_), st.integers(0, 200), st.binary(min_size=1, max_size=4)))
def test_any_metadata_bytes_are_read_or_refused(change: bytes | tuple[int, bytes]) -> None:
    if isinstance(change, bytes):
        data = change
    else:
        at, patch = change
        whole = encode_metadata(sample_metadata())
        data = whole[:at] + patch + whole[at + len(patch) :]
    with contextlib.suppress(PopefError):
        assert decode_metadata(data).executable


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda message: message.anchors[0].tensor_info.shape.append(3), "'x' says 8 bytes, but F32\\[2, 3\\] takes 24"),
        (lambda message: setattr(message.anchors[0].tensor_info, "data_type", 0), "'x' has the unknown data type 0"),
        (lambda message: setattr(message.anchors[0].tensor_info, "data_type", 99), "'x' has the unknown data type 99"),
        (lambda message: setattr(message.anchors[1], "type", 7), "anchor 'w' has the unknown type 7"),
        (lambda message: setattr(message.anchors[1], "name", "x"), "two anchors are named 'x'"),
        (lambda message: message.anchors[0].tensor_info.shape.extend([1] * 40), "41 dimensions; at most 32"),
    ],
)
def test_inconsistent_metadata_are_refused(change: object, reason: str) -> None:
    message = pb.Metadata.FromString(encode_metadata(sample_metadata()))
    change(message)  # type: ignore[operator]
    with pytest.raises(PopefError, match=reason):
        decode_metadata(message.SerializeToString())


def test_metadata_of_another_executable_than_their_blob_are_refused() -> None:
    content, info = encode_metadata(sample_metadata("other")), BlobInfo(name="pair", executable="pair").serialized()
    header = dataclasses.replace(
        opaque(content)[0], kind=BlobType.METADATA, info_bytes=len(info), info_crc=zlib.crc32(info), content_crc=zlib.crc32(content)
    )
    with pytest.raises(PopefError, match="the metadata are of executable 'other', the blob is of 'pair'"):
        Reader().parse_stream(io.BytesIO(made_up([(header, info, content)])))


@pytest.mark.slow
def test_message_of_many_empty_entries_is_refused_before_allocation() -> None:
    with pytest.raises(PopefError, match="more than 10 entries of field 12"):
        check_wire(b"\x62\x00" * 11, {12: 10}, PopefError)
    check_wire(b"\x62\x00" * 10, {12: 10})
    with pytest.raises(PopefError, match="more than 1048576 fields"):
        check_wire(b"\x08\x00" * ((1 << 20) + 1), {}, PopefError)
    with pytest.raises(PopefError, match="longer than ten bytes"):
        check_wire(b"\xff" * 11, {}, PopefError)


@pytest.mark.parametrize(
    "blob",
    [
        opaque(zlib.compress(bytes(16 << 20)), compression=Compression.ZLIB, content_bytes=50_000),
        opaque(stored_bytes=1 << 40, content_bytes=1 << 40),
        opaque(compression=Compression.ZLIB, content_bytes=7000),
    ],
    ids=["bomb", "huge", "ratio"],
)
def test_memory_is_not_allocated_for_an_unverified_header_size(blob: tuple[RecordHeader, bytes, bytes]) -> None:
    data = made_up([blob])
    tracemalloc.start()
    try:
        with pytest.raises(PopefError):
            read_all(data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_all_metadata_of_a_file_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(writer: Writer) -> None:
        for name in ("a", "b"):
            writer.write(sample_metadata(name))

    data = file_of(write)
    most = len(encode_metadata(sample_metadata("a"))) * 2 - 1
    monkeypatch.setattr("stoker.backends.ipu.popef.reader.MAX_METADATA_BYTES", most)
    with pytest.raises(PopefError, match=rf"blob 1 \(METADATA 'b'\), offset \d+: the file has more than {most} bytes of metadata"):
        Reader().parse_stream(io.BytesIO(data))
    monkeypatch.setattr("stoker.backends.ipu.popef.writer.MAX_METADATA_BYTES", most)
    with pytest.raises(PopefError, match=f"all metadata of a file take at most {most} bytes"):
        file_of(write)


def test_opaque_contents_are_read_on_request() -> None:
    def write(writer: Writer) -> None:
        write_sample(writer)
        with writer.create_opaque_blob("large", "pair", compress=True) as blob:
            blob.stream.write(bytes(16 << 20))

    stream = io.BytesIO(file_of(write))
    tracemalloc.start()
    try:
        reader = Reader()
        reader.parse_stream(stream)
        opaques = ModelBuilder(reader).create_model().opaques
        assert set(opaques) == {"fusion", "large"}
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert opaques["large"] == bytes(16 << 20)


def test_number_of_blobs_in_a_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(writer: Writer) -> None:
        for number in range(1000):
            writer.create_opaque_blob(str(number), "e").close()

    data = file_of(write)
    reader = Reader()
    reader.parse_stream(io.BytesIO(data))
    assert [each.name for each in reader.opaque_blobs()] == [str(number) for number in range(1000)]
    assert MAX_BLOBS > 10_000
    monkeypatch.setattr("stoker.backends.containers.record.MAX_RECORDS", 999)
    monkeypatch.setattr("stoker.backends.ipu.popef.writer.MAX_BLOBS", 999)
    with pytest.raises(PopefError, match="more than 999 blobs"):
        Reader().parse_stream(io.BytesIO(data))
    with pytest.raises(PopefError, match="a file holds at most 999 blobs"):
        file_of(write)


def test_walking_reads_only_the_contents_of_metadata() -> None:
    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            self.taken += len(data)
            return data

    def write(writer: Writer) -> None:
        write_sample(writer)
        with writer.create_tensor_data(TensorDataInfo("big", dataclasses.replace(PAIR, shape=(1 << 20,)))) as blob:
            blob.stream.write(bytes(4 << 20))

    stream = Counting(file_of(write))
    reader = Reader()
    reader.parse_stream(stream)
    assert stream.taken < 4096
    assert HEADER_BYTES * len(reader.blobs()) < stream.taken
