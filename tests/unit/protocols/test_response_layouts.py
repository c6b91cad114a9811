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
    layouts = ResponseLayouts()
    for seed, request_id in enumerate(ids):
        answer = response(datatypes, shape, request_id, seed)
        assert layouts.encode(answer) == encode_message(answer, {}, {}).SerializeToString(deterministic=True)


def test_outputs_of_other_memory_layouts_are_written_in_order():
    answer = response([DataType.INT32], (4, 6), "", 1)
    answer.outputs = {"OUT0": answer.outputs["OUT0"][:, ::2]}
    assert ResponseLayouts().encode(answer) == encode_message(answer, {}, {}).SerializeToString()


def test_replaced_model_with_another_signature_gets_its_own_layout():
    layouts = ResponseLayouts()
    for datatype in (DataType.FP32, DataType.INT32):
        answer = response([datatype], (1, 2), "", 1)
        assert layouts.encode(answer) == encode_message(answer, {}, {}).SerializeToString()


def test_strings_are_encoded_by_protobuf():
    answer = InferResponse("m", 1, "", {"S": object_array([b"x"], (1,))}, ModelSignature((), (TensorSpec("S", DataType.BYTES, ()),), 1))
    assert ResponseLayouts().encode(answer) is None


def test_output_outside_the_signature_is_an_internal_error():
    answer = response([DataType.FP32], (1, 1), "", 1)
    answer.outputs = {"else": answer.outputs["OUT0"]}
    with pytest.raises(KeyError, match="not an output"):
        ResponseLayouts().encode(answer)
