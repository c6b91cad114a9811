"""A static program's bytes: everything round-trips, and inconsistent programs are refused."""

import contextlib
import dataclasses
import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.ipu.popef.pb import ipu_program_pb2 as pb
from stoker.backends.ipu.popef.program_codec import (
    MAGIC,
    MAX_DESCRIPTION_BYTES,
    check_package_hash,
    decode_program,
    encode_program,
    package_hash,
    read_description,
    read_program,
)
from stoker.backends.ipu.popef.schema import PackageHashMismatch, PopefError
from stoker.backends.ipu.program import Binding, MemoryAccount, StaticProgram, Step, StepKind, SubGraph
from tests.fakes.popef_samples import sample_program

U32, U64, TEXT = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.text(max_size=5)
COUNT = st.integers(1, 1 << 12)
BINDINGS = st.lists(st.builds(Binding, TEXT, TEXT), max_size=2).map(tuple)
STEPS = st.builds(
    Step,
    kind=st.sampled_from(StepKind),
    cycles=U64,
    node=TEXT,
    op_type=TEXT,
    tiles=U32,
    flops=U64,
    data_bytes=U64,
    ipu=U32,
    stage=U32,
)
GRAPHS = st.builds(
    SubGraph,
    index=U32,
    name=TEXT,
    onnx=st.binary(max_size=10),
    inputs=BINDINGS,
    outputs=BINDINGS,
    weights=BINDINGS,
    steps=st.lists(STEPS, max_size=3).map(tuple),
)
ACCOUNTS = st.builds(
    MemoryAccount,
    ipu=U32,
    capacity_bytes=U64,
    by_category=st.dictionaries(TEXT, U64, max_size=2),
    total_bytes=U64,
    tile_bytes=st.lists(U64, max_size=3).map(tuple),
)
PROGRAMS = st.builds(
    StaticProgram,
    package_hash=TEXT,
    system=TEXT,
    ipu_version=COUNT,
    tiles_per_ipu=COUNT,
    graphs=st.lists(GRAPHS, min_size=1, max_size=3, unique_by=(lambda graph: graph.index, lambda graph: graph.name)).map(tuple),
    num_io_tiles=U32,
    num_ipus=COUNT,
    replication_factor=COUNT,
    batches_per_step=COUNT,
    micro_batch_size=U32,
    batch_axis=st.integers(-(2**31), 2**31 - 1),
    memory=st.lists(ACCOUNTS, max_size=2).map(tuple),
    pipeline_stages=COUNT,
    code_bytes=U64,
    weight_bytes=U64,
    attributes=st.dictionaries(TEXT, TEXT, max_size=2),
)


@pytest.mark.slow
@given(PROGRAMS)
def test_every_program_round_trips(program: StaticProgram) -> None:
    assert decode_program(encode_program(program)) == program


def test_same_program_gives_the_same_bytes_for_any_order_of_attributes() -> None:
    one, other = ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert encode_program(dataclasses.replace(sample_program(), attributes=one)) == encode_program(
        dataclasses.replace(sample_program(), attributes=other)
    )


def test_description_is_read_without_the_graphs() -> None:
    data = encode_program(sample_program(onnx=b"x" * 100_000))
    stream = io.BytesIO(data)
    program, sizes = read_description(stream, len(data))
    assert sizes == (100_000,)
    assert program.graphs[0].onnx == b""
    assert program.graphs[0].steps == sample_program().graphs[0].steps
    assert stream.read() == b"x" * 100_000


def test_program_truncated_at_any_byte_is_refused() -> None:
    data = encode_program(sample_program())
    for length in range(len(data)):
        with pytest.raises(PopefError):
            decode_program(data[:length])
    with pytest.raises(PopefError, match="the graphs end at"):
        decode_program(data + b"x")
    with pytest.raises(PopefError, match="something follows the last graph"):
        read_program(io.BytesIO(data + b"x"), len(data))


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_any_changed_program_is_read_or_refused(at: int, patch: bytes) -> None:
    data = encode_program(sample_program())
    with contextlib.suppress(PopefError):
        decode_program(data[:at] + patch + data[at + len(patch) :])


@given(st.binary(max_size=100))
def test_random_descriptions_are_refused(description: bytes) -> None:
    with pytest.raises(PopefError):
        decode_program(MAGIC + struct.pack("<I", len(description)) + description)


def test_other_bytes_and_wrong_lengths_are_refused() -> None:
    with pytest.raises(PopefError, match="no program of a simulated IPU: it begins with 7f 45 4c 46"):
        decode_program(b"\x7fELF" + bytes(100))
    with pytest.raises(PopefError, match="3 bytes are no program"):
        decode_program(b"IPU")
    for length in (101, MAX_DESCRIPTION_BYTES + 1, 2**32 - 1):
        with pytest.raises(PopefError, match=f"the description should have {length} bytes; 100 follow"):
            decode_program(MAGIC + struct.pack("<I", length) + bytes(100))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda message: message.ClearField("graphs"), "at least one graph"),
        (lambda message: setattr(message, "num_ipus", 0), "num_ipus is 0; 1 to 4096 are allowed"),
        (lambda message: setattr(message, "batches_per_step", 1 << 31), "batches_per_step is 2147483648; 1 to 65536 are allowed"),
        (lambda message: message.attribute_names.append("x"), "attributes: columns of 2, 1 elements"),
        (lambda message: message.graphs[0].inputs.anchors.append("x"), "graph 'pair': bindings: columns of 2, 1"),
        (lambda message: message.graphs[0].steps.cycles.append(1), "graph 'pair': steps: columns of"),
        (lambda message: message.graphs[0].steps.node.__setitem__(0, 9), "names a string beyond the 3 there are"),
        (lambda message: message.graphs[0].steps.kind.__setitem__(0, 77), "unknown kind 77"),
        (lambda message: message.graphs.append(message.graphs[0]), "two of a program's are graph 'pair'"),
        (lambda message: message.memory[0].categories.append("x"), "memory of IPU 0: columns of 3, 2"),
        (lambda message: setattr(message.graphs[0], "onnx_bytes", 1 << 60), "the graphs end at"),
    ],
)
def test_inconsistent_programs_are_refused(change: Any, reason: str) -> None:
    data = encode_program(sample_program())
    (length,) = struct.unpack_from("<I", data, 4)
    message = pb.Program.FromString(data[8 : 8 + length])
    change(message)
    description = message.SerializeToString()
    with pytest.raises(PopefError, match=reason):
        decode_program(MAGIC + struct.pack("<I", len(description)) + description + data[8 + length :])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"graphs": ()}, "at least one graph"),
        ({"batches_per_step": 0}, "batches_per_step is 0"),
        ({"code_bytes": -1}, "a value cannot be stored"),
        ({"graphs": sample_program().graphs * 2}, "two of a program's are graph 'pair'"),
    ],
)
def test_unreadable_programs_are_not_written(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PopefError, match=reason):
        encode_program(dataclasses.replace(sample_program(), **change))


def test_too_many_graphs_steps_or_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_program(sample_program())
    monkeypatch.setattr("stoker.backends.ipu.popef.program_codec.MAX_GRAPHS", 0)
    with pytest.raises(PopefError, match="more than 0 entries of field 14"):
        decode_program(data)
    monkeypatch.setattr("stoker.backends.ipu.popef.program_codec.MAX_STEPS", 1)
    with pytest.raises(PopefError, match="more than 1 steps"):
        encode_program(sample_program())
    monkeypatch.undo()
    monkeypatch.setattr("stoker.backends.ipu.popef.program_codec.MAX_ALL_TILES", 1)
    with pytest.raises(PopefError, match="name more than 1 tiles"):
        encode_program(sample_program())
    monkeypatch.undo()
    monkeypatch.setattr("stoker.backends.ipu.popef.program_codec.MAX_DESCRIPTION_BYTES", 10)
    with pytest.raises(PopefError, match="at most 10 are allowed"):
        encode_program(sample_program())


def test_executable_of_another_build_is_refused_with_both_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    old = package_hash()
    check_package_hash(old)
    monkeypatch.setattr("stoker.backends.ipu.popef.program_codec.FORMAT_VERSION", 999)
    assert package_hash() != old
    with pytest.raises(PackageHashMismatch, match=f"old.popef: .*{old}.*{package_hash()}.*check_package_hash"):
        check_package_hash(old, "old.popef")
