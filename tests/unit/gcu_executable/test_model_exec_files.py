"""model.exec files: a written file is read back; truncated, changed and synthetic ones are refused with section and offset."""

import contextlib
import dataclasses
import hashlib
import itertools
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.tensor import DataType
from stoker.backends.containers.framing import CLOSING_BYTES, HEADER_BYTES, ClosingRecord, Compression, ContainerError, RecordHeader
from stoker.backends.containers.record import ByteSource, walk
from stoker.backends.gcu.executable import ExecutableError, read_executable, read_header, verify_executable, write_executable
from stoker.backends.gcu.executable_layout import FRAMING, Section, pack_description, pack_name, unpack_description
from stoker.backends.gcu.pb import gcu_executable_pb2 as pb
from stoker.backends.gcu.program import CompiledBatch, GcuExecutable, GcuTensor

SAMPLE = GcuExecutable(
    name="sample",
    card="i20",
    precision="mixed",
    inputs=(GcuTensor("x", DataType.FP32, (3, 2)), GcuTensor("ids", DataType.INT64, ())),
    outputs=(GcuTensor("y", DataType.FP16, (4,)),),
    batches=(
        CompiledBatch(batch_size=1, onnx=b"one", workspace_bytes=64, flops=10, hbm_traffic_bytes=100, run_s=(1e-3, 5e-4)),
        CompiledBatch(batch_size=8, onnx=b"eight" * 3, workspace_bytes=512, flops=80, hbm_traffic_bytes=800, run_s=(8e-3, 4e-3)),
    ),
    weights={
        "w": np.arange(6, dtype=np.float16).reshape(2, 3),
        "none": np.zeros((0, 4), np.float32),
        "scalar": np.array(7, np.int32),
    },
    attributes={"compiler": "stoker", "note": "größer"},
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "model.exec"
    write_executable(path, SAMPLE)
    return path.read_bytes()


def refusal(path: Path, data: bytes) -> ExecutableError:
    path.write_bytes(data)
    with pytest.raises(ExecutableError) as caught:
        read_executable(path)
    assert str(caught.value).startswith(str(path))
    return caught.value


def sections_of(path: Path) -> list[bytes]:
    """Each section's bytes, and last the closing record's."""
    data = path.read_bytes()
    starts = [*(record.offset for record in walk(ByteSource.of_file(path), FRAMING)), len(data) - CLOSING_BYTES, len(data)]
    return [data[start:end] for start, end in itertools.pairwise(starts)]


def section(kind: Section, name: str, content: bytes, **claims: object) -> tuple[RecordHeader, bytes, bytes]:
    """A section whose header may have false claims."""
    info = pack_name(name)
    header = RecordHeader(
        kind=kind,
        compression=Compression.NONE,
        info_bytes=len(info),
        stored_bytes=len(content),
        content_bytes=len(content),
        info_crc=zlib.crc32(info),
        content_crc=zlib.crc32(content),
    )
    return dataclasses.replace(header, **claims), info, content  # type: ignore[arg-type]


def made_up(sections: list[tuple[RecordHeader, bytes, bytes]]) -> bytes:
    """A file of these sections with correct checksums of headers and closing record, whatever their content."""
    headers = [header.pack(FRAMING) for header, _, _ in sections]
    body = b"".join(packed + info + content for packed, (_, info, content) in zip(headers, sections, strict=True))
    digest = hashlib.sha256(b"".join(headers)).digest()
    return body + ClosingRecord(records=len(sections), total_bytes=len(body) + CLOSING_BYTES, digest=digest).pack(FRAMING)


def described(change: Callable[[pb.Executable], None] = lambda message: None) -> list[tuple[RecordHeader, bytes, bytes]]:
    """The sections of the sample, its description changed."""
    message = pb.Executable.FromString(pack_description(SAMPLE))
    change(message)
    return [
        section(Section.DESCRIPTION, "sample", message.SerializeToString()),
        section(Section.GRAPH, "batch 1", b"one"),
        section(Section.GRAPH, "batch 8", b"eight" * 3),
        section(Section.WEIGHT, "w", SAMPLE.weights["w"].tobytes()),
        section(Section.WEIGHT, "none", b""),
        section(Section.WEIGHT, "scalar", SAMPLE.weights["scalar"].tobytes()),
    ]


def test_written_file_is_read_back_equal(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.exec"
    path.write_bytes(whole)
    found = read_executable(path)
    assert dataclasses.replace(found, weights={}) == dataclasses.replace(SAMPLE, weights={})
    assert list(found.weights) == list(SAMPLE.weights)
    for name, array in SAMPLE.weights.items():
        assert found.weights[name].dtype == array.dtype
        assert found.weights[name].shape == array.shape
        assert np.array_equal(found.weights[name], array)
        assert not found.weights[name].flags.writeable


def test_same_executable_gives_the_same_bytes_under_any_name(tmp_path: Path, whole: bytes) -> None:
    write_executable(tmp_path / "deep" / "other.exec", SAMPLE)
    assert (tmp_path / "deep" / "other.exec").read_bytes() == whole
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["other.exec"]


def test_header_is_read_without_graphs_and_weights(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.exec"
    damaged = bytearray(whole)
    damaged[whole.index(b"eighteight")] ^= 1
    path.write_bytes(damaged)
    found = read_header(path)
    assert (found.name, found.weights, [batch.onnx for batch in found.batches]) == ("sample", {}, [b"", b""])
    assert found.batches[1].run_s == SAMPLE.batches[1].run_s
    with pytest.raises(ExecutableError, match=r"section 2 \(GRAPH 'batch 8'\), offset \d+: the content's checksum"):
        verify_executable(path)


def test_file_truncated_at_any_byte_is_refused_with_section_and_offset(tmp_path: Path, whole: bytes) -> None:
    for length in range(len(whole)):
        error = refusal(tmp_path / "cut", whole[:length])
        assert error.location, length
        assert error.offset is not None
        assert error.offset <= length


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0x01, 0x80])
def test_file_with_any_byte_changed_is_refused_with_section_and_offset(tmp_path: Path, whole: bytes, flip: int) -> None:
    for at in range(len(whole)):
        error = refusal(tmp_path / "changed", whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        assert error.location, at
        assert error.offset is not None
        assert error.offset <= at


def test_bytes_behind_the_closing_record_are_refused(tmp_path: Path, whole: bytes) -> None:
    assert "the closing record ends the file at" in refusal(tmp_path / "longer", whole + b"\0").reason


def test_removed_swapped_or_added_sections_are_detected(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.exec"
    path.write_bytes(whole)
    *rows, closing = sections_of(path)
    assert "the closing record says 6 sections, but there are 5" in refusal(tmp_path / "less", b"".join(rows[:-1]) + closing).reason
    exchanged = b"".join([rows[0], rows[2], rows[1], *rows[3:]]) + closing
    assert "digest is not that of the headers" in refusal(tmp_path / "exchanged", exchanged).reason


def test_synthetic_files_of_the_right_form_equal_written_ones(whole: bytes) -> None:
    assert made_up(described()) == whole


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        (described()[1:], "the first section must be the description"),
        ([], "the first section must be the description"),
        (described()[:-1], "there are 5 sections, the description says 6"),
        ([*described(), section(Section.WEIGHT, "more", b"x")], "there are 7 sections, the description says 6"),
        ([*described()[:1], described()[2], described()[1], *described()[3:]], "the description says that GRAPH 'batch 1' stands here"),
        ([*described()[:3], section(Section.WEIGHT, "w", b"short"), *described()[4:]], "5 bytes of content, the description says 12"),
        ([*described()[:1], section(Section.WEIGHT, "batch 1", b"one"), *described()[2:]], "GRAPH 'batch 1' stands here"),
        ([section(Section.DESCRIPTION, "sample", b"\xff\xff")], "a message ends inside a number"),
        ([section(Section.DESCRIPTION, "sample", b"")], "format is version 0; this build reads 1: compile the model again"),
        ([section(Section.DESCRIPTION, "sample", bytes(1 << 23))], "the description has 8388608 bytes; at most 4194304 are allowed"),
    ],
)
def test_inconsistent_sections_are_refused(tmp_path: Path, sections: list[tuple[RecordHeader, bytes, bytes]], reason: str) -> None:
    assert reason in refusal(tmp_path / "model.exec", made_up(sections)).reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda message: setattr(message, "format_version", 2), "format is version 2; this build reads 1"),
        (lambda message: setattr(message, "precision", "int8"), "precision 'int8' is none of fp32, fp16, mixed"),
        (lambda message: message.attribute_names.append("x"), "3 attributes have 2 values"),
        (lambda message: message.weights.append(message.weights[0]), "there are two of weight 'w'"),
        (lambda message: message.inputs.append(message.inputs[0]), "there are two of input 'x'"),
        (lambda message: message.ClearField("outputs"), "an executable needs at least one output"),
        (lambda message: setattr(message.inputs[0], "name", ""), "one of the inputs has no name"),
        (lambda message: setattr(message.inputs[0], "dtype", "FP12"), "inputs 'x': there is no element type 'FP12'"),
        (lambda message: setattr(message.inputs[0], "dtype", "BYTES"), "inputs 'x': there is no element type 'BYTES'"),
        (lambda message: message.weights[0].dims.extend([1 << 40, 1 << 40]), "weights 'w' has the impossible shape"),
        (lambda message: message.weights[0].dims.extend([1] * 80), "weights 'w' has the impossible shape"),
        (lambda message: message.ClearField("batches"), "the compiled batch sizes are []"),
        (lambda message: setattr(message.batches[1], "batch_size", 1), "the compiled batch sizes are [1, 1]"),
        (lambda message: setattr(message.batches[0], "batch_size", 0), "the compiled batch sizes are [0, 8]"),
        (lambda message: message.batches[0].ClearField("run_s"), "batch 1: the modelled seconds are []"),
        (lambda message: message.batches[0].run_s.append(float("nan")), "batch 1: the modelled seconds are"),
        (lambda message: message.batches[0].run_s.append(-1.0), "batch 1: the modelled seconds are"),
        (lambda message: message.batches[0].run_s.append(1e300), "batch 1: the modelled seconds are"),
    ],
)
def test_inconsistent_descriptions_are_refused(tmp_path: Path, change: Callable[[pb.Executable], None], reason: str) -> None:
    error = refusal(tmp_path / "model.exec", made_up(described(change)))
    assert reason in error.reason
    assert error.location == "section 0 (DESCRIPTION 'sample')"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"stored_bytes": 1 << 62, "content_bytes": 1 << 62}, "4611686018427387904 bytes of content begin here, but the file ends at"),
        ({"content_bytes": 1 << 62}, "bytes stored but 4611686018427387904 of content"),
        ({"info_bytes": 1 << 20}, "1048576 bytes of info; at most 65536"),
        ({"info_bytes": 60_000}, "60000 bytes are expected here, but the file ends at"),
        ({"compression": Compression.ZLIB}, "compression 1 is none of 0 NONE"),
    ],
)
def test_memory_is_not_allocated_for_an_unverified_header_size(tmp_path: Path, claims: dict[str, object], reason: str) -> None:
    lying = section(Section.WEIGHT, "w", SAMPLE.weights["w"].tobytes(), **claims)
    data = made_up([*described()[:3], lying, *described()[4:]])
    tracemalloc.start()
    try:
        assert reason in refusal(tmp_path / "model.exec", data).reason
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_message_of_many_empty_entries_is_refused_before_allocation(tmp_path: Path) -> None:
    content = b"\x42\x00" * 100_000
    assert "more than 32768 entries of field 8" in refusal(tmp_path / "x", made_up([section(Section.DESCRIPTION, "s", content)])).reason


@given(st.binary(max_size=60) | st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=4)))
def test_any_description_is_read_or_refused(change: bytes | tuple[int, bytes]) -> None:
    if isinstance(change, tuple):
        at, patch = change
        packed = pack_description(SAMPLE)
        data = packed[:at] + patch + packed[at + len(patch) :]
    else:
        data = change
    with contextlib.suppress(ContainerError):
        executable, _, sizes = unpack_description(data)
        assert len(sizes) == len(executable.batches)


@pytest.mark.parametrize(
    ("executable", "reason"),
    [
        (dataclasses.replace(SAMPLE, batches=()), "the compiled batch sizes are []"),
        (dataclasses.replace(SAMPLE, batches=SAMPLE.batches[::-1]), "the compiled batch sizes are [8, 1]"),
        (dataclasses.replace(SAMPLE, precision="fp8"), "precision 'fp8'"),
        (dataclasses.replace(SAMPLE, name="\udcff"), "a value cannot be stored"),
        (dataclasses.replace(SAMPLE, weights={"c": np.zeros(2, np.complex64)}), "weight 'c' is complex64, which no executable can hold"),
    ],
)
def test_unreadable_executable_is_not_written(tmp_path: Path, executable: GcuExecutable, reason: str) -> None:
    path = tmp_path / "model.exec"
    path.write_bytes(b"as it was")
    with pytest.raises(ExecutableError) as caught:
        write_executable(path, executable)
    assert reason in caught.value.reason
    assert path.read_bytes() == b"as it was"
    assert [each.name for each in tmp_path.iterdir()] == ["model.exec"]


def test_file_that_cannot_be_written_reports_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ExecutableError, match="cannot be written"):
        write_executable(tmp_path / "file" / "model.exec", SAMPLE)


def test_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExecutableError, match="cannot be opened: No such file"):
        read_header(tmp_path / "nowhere")
    with pytest.raises(ExecutableError, match="is no regular file"):
        read_header(tmp_path)


def test_section_offsets_are_their_start_positions(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.exec"
    path.write_bytes(whole)
    _, sections = verify_executable(path)
    assert [each.header.kind for each in sections] == [Section.DESCRIPTION, *[Section.GRAPH] * 2, *[Section.WEIGHT] * 3]
    for each in sections:
        assert whole[each.offset : each.offset + 8] == FRAMING.magic
        assert each.content_offset == each.offset + HEADER_BYTES + each.header.info_bytes
