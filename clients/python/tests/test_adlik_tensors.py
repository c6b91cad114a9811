"""TensorFlow's tensors to numpy and back, without TensorFlow."""

from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stoker_client as sdk
from stoker_client._pb import adlik_messages as pb
from stoker_client.adlik import array_from_proto, proto_from_array, tensor_dtype_to_np_dtype

NUMBERS = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64")


def tensor(dtype: pb.DataType, shape: tuple[int, ...], **values: Any) -> pb.TensorProto:
    proto = pb.TensorProto(dtype=dtype, **values)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


@given(st.sampled_from(NUMBERS).flatmap(lambda name: hnp.arrays(name, hnp.array_shapes(max_dims=3, max_side=4, min_side=0))))
def test_every_array_of_numbers_round_trips_unchanged(array: np.ndarray) -> None:
    back = array_from_proto("y", pb.TensorProto.FromString(proto_from_array("x", array).SerializeToString()))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()


def test_big_endian_and_strided_arrays_are_sent_in_wire_order() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert proto_from_array("x", array).tensor_content == np.array([0, 3, 1, 4, 2, 5], "<i4").tobytes()


def test_strings_are_sent_one_by_one() -> None:
    proto = proto_from_array("x", np.array([["a", b"b\0"], ["ü", b""]], dtype=object))
    assert (proto.dtype, list(proto.string_val)) == (pb.DT_STRING, [b"a", b"b\0", "ü".encode(), b""])
    assert array_from_proto("x", proto).tolist() == [[b"a", b"b\0"], ["ü".encode(), b""]]


def test_bfloat16_is_sent_as_itself_and_received_as_bits() -> None:
    proto = proto_from_array("x", np.array([1.0, -2.5], dtype=ml_dtypes.bfloat16))
    assert proto.dtype == pb.DT_BFLOAT16
    assert sdk.bf16_to_float32(array_from_proto("x", proto)).tolist() == [1.0, -2.5]


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (tensor(pb.DT_FLOAT, (2, 2), float_val=[1.5]), np.full((2, 2), 1.5, np.float32)),
        (tensor(pb.DT_INT32, (3,), int_val=[1, 2]), np.array([1, 2, 2], np.int32)),
        (tensor(pb.DT_INT64, (2,)), np.zeros(2, np.int64)),
        (tensor(pb.DT_HALF, (2,), half_val=[0x3C00, 0xC000]), np.array([1, -2], np.float16)),
        (tensor(pb.DT_BOOL, (2,), bool_val=[True, False]), np.array([True, False])),
        (tensor(pb.DT_COMPLEX64, (1,), scomplex_val=[1, 2]), np.array([1 + 2j], np.complex64)),
        (tensor(pb.DT_FLOAT, (), float_val=[3]), np.array(3, np.float32)),
    ],
)
def test_typed_values_are_read_like_tensorflow(proto: pb.TensorProto, expected: np.ndarray) -> None:
    found = array_from_proto("y", proto)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (tensor(pb.DT_FLOAT, (2,), tensor_content=b"1234567"), "needs 8 bytes, got 7"),
        (tensor(pb.DT_FLOAT, (2,), float_val=[1, 2, 3]), "holds 2 elements, got 3"),
        (tensor(pb.DT_UINT8, (1,), int_val=[256]), "does not hold DT_UINT8 values"),
        (tensor(pb.DT_COMPLEX64, (1,), scomplex_val=[1]), "does not hold DT_COMPLEX64 values"),
        (tensor(pb.DT_FLOAT, (-1,)), "unknown shape"),
        (tensor(pb.DT_VARIANT, (1,)), "element type DT_VARIANT, which has no numpy form"),
        (tensor(cast("pb.DataType", 99), (1,)), "element type number 99"),
    ],
)
def test_inconsistent_tensor_is_an_error(proto: pb.TensorProto, text: str) -> None:
    with pytest.raises(sdk.InvalidResponse, match=text):
        array_from_proto("y", proto)


def test_types_have_numpy_names() -> None:
    assert tensor_dtype_to_np_dtype(pb.DT_HALF) is np.float16
    assert tensor_dtype_to_np_dtype(pb.DT_BOOL) is np.bool_
    assert tensor_dtype_to_np_dtype(pb.DT_STRING) is np.object_
    assert tensor_dtype_to_np_dtype(pb.DT_RESOURCE) is None
