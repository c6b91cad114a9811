"""The binary form of stored responses: exact round trips, and anything else is no response."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.tensor import DataType
from stoker.server.caching.stored_form import packed_response, unpacked_response

NUMBERS = [datatype for datatype in DataType if not datatype.is_bytes]
shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray:
    shape = draw(shapes)
    count = int(np.prod(shape))
    if draw(st.booleans()):
        array = np.empty(count, dtype=np.object_)
        array[:] = draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count))
        return array.reshape(shape)
    datatype = draw(st.sampled_from(NUMBERS))
    raw = draw(st.binary(min_size=count * datatype.numpy.itemsize, max_size=count * datatype.numpy.itemsize))
    if datatype is DataType.BOOL:
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(raw, datatype.numpy).reshape(shape)


@given(st.dictionaries(st.text(max_size=8), tensors(), max_size=4))
def test_response_survives_the_round_trip_bit_by_bit(outputs: dict[str, np.ndarray]) -> None:
    response = unpacked_response(packed_response(outputs))
    assert response is not None
    assert list(response.outputs) == list(outputs)
    for name, array in outputs.items():
        found = response.outputs[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tolist() == array.tolist() if array.dtype.hasobject else found.tobytes() == array.tobytes()
        assert not found.flags.writeable


@given(st.binary(max_size=60))
def test_random_bytes_are_no_response_and_raise_nothing(data: bytes) -> None:
    unpacked_response(data)
    assert unpacked_response(b"SRC2" + data) is None


@given(st.integers(0, 200), st.integers(1, 255))
def test_changed_byte_yields_a_response_of_the_same_size_or_none(at: int, change: int) -> None:
    data = bytearray(packed_response({"OUT": np.arange(6, dtype=np.int16).reshape(2, 3), "TEXT": np.array([b"ab", b""], np.object_)}))
    data[at % len(data)] ^= change
    response = unpacked_response(bytes(data))
    assert response is None or sum(array.size for array in response.outputs.values()) <= 8


@pytest.mark.parametrize("cut", [1, 4, 20])
def test_truncated_and_extended_bytes_are_no_response(cut: int) -> None:
    data = packed_response({"OUT": np.zeros(5)})
    assert unpacked_response(data[:-cut]) is None
    assert unpacked_response(data + bytes(cut)) is None


def test_count_that_promises_more_strings_than_there_are_bytes_allocates_nothing() -> None:
    data = packed_response({"OUT": np.array([b"x"], np.object_)})
    at = data.index(b"object") + 6 + 1
    huge = data[:at] + (1 << 60).to_bytes(8, "little") + data[at + 8 :]
    assert unpacked_response(huge) is None
