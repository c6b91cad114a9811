"""Metadata of any kind round-trip unchanged."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.ipu.popef.messages import decode_metadata, encode_metadata
from stoker.backends.ipu.popef.schema import Anchor, DataType, Metadata, Option, ProgramFlow, TensorInfo, TensorType

U32 = st.integers(0, 2**32 - 1)
COUNT = st.integers(1, 2**32 - 1)
NAME = st.text(min_size=1, max_size=6)
INDICES = st.lists(U32, max_size=3).map(tuple)
OPTIONS = st.lists(st.builds(Option, NAME, st.text(max_size=5)), max_size=2).map(tuple)
INFOS = st.builds(TensorInfo, st.lists(st.integers(0, 2**14), max_size=4).map(tuple), st.sampled_from(DataType))
ANCHORS = st.builds(
    Anchor,
    name=NAME,
    handle=st.text(max_size=5),
    tensor_info=INFOS,
    type=st.sampled_from(TensorType),
    is_per_replica=st.booleans(),
    programs=INDICES,
)
METADATA = st.builds(
    Metadata,
    executable=NAME,
    anchors=st.lists(ANCHORS, max_size=3, unique_by=lambda anchor: anchor.name).map(tuple),
    replication_factor=COUNT,
    num_ipus=COUNT,
    ipu_version=U32,
    is_pod=st.booleans(),
    num_processes=COUNT,
    is_inference=st.booleans(),
    engine_options=OPTIONS,
    device_options=OPTIONS,
    seed_handle=st.text(max_size=5),
    device_iterations=st.integers(1, 2**64 - 1),
    program_flow=st.builds(ProgramFlow, INDICES, INDICES, INDICES),
    programs_map=st.dictionaries(U32, st.text(max_size=5), max_size=3),
)


@given(METADATA)
def test_every_field_round_trips(metadata: Metadata) -> None:
    assert decode_metadata(encode_metadata(metadata)) == metadata


@given(METADATA)
def test_equal_metadata_have_equal_bytes(metadata: Metadata) -> None:
    assert encode_metadata(decode_metadata(encode_metadata(metadata))) == encode_metadata(metadata)
