"""Responses written directly to the wire equal protobuf's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import object_array
from stoker.server.core.request import InferResponse
from stoker.server.protocols.kserve.grpc_codec import ResponseLayouts, encode_message

MOST_BYTES = 1 << 20
DATATYPES = [datatype for datatype in DataType if datatype is not DataType.BYTES]


def response(datatypes: list[DataType], shape: tuple[int, ...], request_id: str, seed: int) -> InferResponse:
    generator = np.random.default_rng(seed)
    specs = tuple(TensorSpec(f"OUT{place}", datatype, (-1,) * (len(shape) - 1)) for place, datatype in enumerate(datatypes))
    outputs = {spec.name: generator.integers(0, 2, shape).astype(spec.datatype.numpy) for spec in specs}
    return InferResponse("m", 300, request_id, outputs, ModelSignature((), specs, 8))


@given(
    datatypes=st.lists(st.sampled_from(DATATYPES), min_size=1, max_size=4),
    shape=st.lists(st.integers(0, 20), min_size=1, max_size=3).map(tuple),
    ids=st.lists(st.text(max_size=200), min_size=1, max_size=3),
)
def test_every_response_equals_protobufs_bytes(datatypes, shape, ids):
    layouts = ResponseLayouts(MOST_BYTES)
    for seed, request_id in enumerate(ids):
        answer = response(datatypes, shape, request_id, seed)
        assert layouts.encode(answer) == encode_message(answer, {}, {}).SerializeToString(deterministic=True)


def test_outputs_of_other_memory_layouts_are_written_in_order():
    answer = response([DataType.INT32], (4, 6), "", 1)
    answer.outputs = {"OUT0": answer.outputs["OUT0"][:, ::2]}
    assert ResponseLayouts(MOST_BYTES).encode(answer) == encode_message(answer, {}, {}).SerializeToString()


def test_replaced_model_with_another_signature_gets_its_own_layout():
    layouts = ResponseLayouts(MOST_BYTES)
    for datatype in (DataType.FP32, DataType.INT32):
        answer = response([datatype], (1, 2), "", 1)
        assert layouts.encode(answer) == encode_message(answer, {}, {}).SerializeToString()


def test_strings_are_encoded_by_protobuf():
    answer = InferResponse("m", 1, "", {"S": object_array([b"x"], (1,))}, ModelSignature((), (TensorSpec("S", DataType.BYTES, ()),), 1))
    assert ResponseLayouts(MOST_BYTES).encode(answer) is None


def test_output_outside_the_signature_is_an_internal_error():
    answer = response([DataType.FP32], (1, 1), "", 1)
    answer.outputs = {"else": answer.outputs["OUT0"]}
    with pytest.raises(KeyError, match="not an output"):
        ResponseLayouts(MOST_BYTES).encode(answer)


def test_output_above_the_bound_has_no_layout():
    answer = response([DataType.INT8], (4, 6), "", 1)
    assert ResponseLayouts(23).encode(answer) is None
    assert ResponseLayouts(24).encode(answer) == encode_message(answer, {}, {}).SerializeToString()


@given(
    shapes=st.lists(st.sampled_from([(1, 2), (2, 2), (2, 1)]), max_size=6),
    versions=st.lists(st.sampled_from([1, 2]), min_size=6, max_size=6),
    orders=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_alternating_shapes_versions_and_orders_get_their_own_layouts(shapes, versions, orders):
    layouts, first = ResponseLayouts(MOST_BYTES), response([DataType.FP32, DataType.INT32], (1, 2), "", 1)
    for shape, version, is_reversed in zip(shapes, versions, orders, strict=False):
        arrays = {"OUT0": np.ones(shape, np.float32), "OUT1": np.ones(shape, np.int32)}
        outputs = dict(reversed(arrays.items())) if is_reversed else arrays
        answer = InferResponse("m", version, "7", outputs, first.signature)
        assert layouts.encode(answer) == encode_message(answer, {}, {}).SerializeToString()
