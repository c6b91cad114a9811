"""Arrays as bytes of a message: every element type, every layout, and descriptions that are damaged."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from stoker.backends.api.tensor import DataType
from stoker.backends.worker.arrays import Array, Blocks, read_blocks
from tests.unit.worker.damage import strange

NUMBERS = [datatype.numpy for datatype in DataType if not datatype.is_bytes]
SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TEXTS = st.binary(max_size=12)


def passed(*blocks: "list[Array]") -> "list[Array]":
    """The arrays after they have crossed."""
    outgoing = Blocks()
    for arrays in blocks:
        outgoing.add(arrays)
    memory = bytearray(outgoing.size_bytes)
    outgoing.write(memoryview(memory))
    return read_blocks(outgoing.entries, np.frombuffer(memory, np.uint8))


def strings(shape: "tuple[int, ...]", content: "list[Any]") -> Array:
    array = np.empty(len(content), np.object_)
    array[:] = content
    return array.reshape(shape)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    shape = draw(SHAPES)
    if draw(st.booleans()):
        count = int(np.prod(shape, dtype=int))
        return strings(shape, draw(st.lists(TEXTS, min_size=count, max_size=count)))
    array = draw(st_numpy.arrays(draw(st.sampled_from(NUMBERS)), shape))
    match draw(st.sampled_from(["as it is", "transposed", "reversed", "strided"])):
        case "transposed":
            return array.T
        case "reversed" if array.ndim:
            return array[::-1]
        case "strided" if array.ndim:
            return np.repeat(array, 2, axis=0)[::2]
    return array


def assert_same(seen: Array, sent: Array) -> None:
    assert seen.shape == sent.shape
    assert seen.dtype == sent.dtype
    assert seen.tolist() == sent.tolist() or seen.tobytes() == np.ascontiguousarray(sent).tobytes()


@given(st.lists(arrays(), max_size=4))
def test_arrays_arrive_as_they_were_sent(sent):
    for seen, expected in zip(passed(*[[array] for array in sent]), sent, strict=True):
        assert_same(seen, expected)


@given(
    st.data(),
    st.sampled_from(NUMBERS),
    st_numpy.array_shapes(min_dims=0, max_dims=2, max_side=3),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_arrays_of_one_block_arrive_one_below_the_other(data, dtype, row_shape, rows):
    sent = [data.draw(st_numpy.arrays(dtype, (count, *row_shape))) for count in rows]
    (seen,) = passed(sent)
    assert_same(seen, np.concatenate(sent))


def test_strings_of_one_block_arrive_one_below_the_other():
    (seen,) = passed([strings((2, 1), [b"a", b""]), strings((1, 1), [b"\x00\xff"])])
    assert seen.tolist() == [[b"a"], [b""], [b"\x00\xff"]]


def test_elements_of_a_string_array_become_bytes():
    (seen,) = passed([strings((6,), ["\u00e9", bytearray(b"x"), memoryview(b"y"), np.bytes_(b"z"), 7, b"w"])])
    assert seen.tolist() == ["\u00e9".encode(), b"x", b"y", b"z", b"7", b"w"]


def test_received_numbers_are_views_of_the_message():
    outgoing = Blocks()
    outgoing.add([np.arange(6, dtype=np.float32).reshape(2, 3)])
    memory = np.zeros(outgoing.size_bytes, np.uint8)
    outgoing.write(memoryview(memory.data))
    (seen,) = read_blocks(outgoing.entries, memory)
    assert np.shares_memory(seen, memory)
    assert seen.flags.aligned
    assert seen.flags.c_contiguous


@pytest.mark.parametrize(
    "entry",
    [
        ["<f4", [2], 0, 4],
        ["<f4", [2], 0, 16],
        ["<f4", [3], 0, 8],
        ["<f4", [2], 64, 8],
        ["<f4", [2], 3, 8],
        ["<f4", [2], -64, 8],
        ["<f4", [2], 0, -8],
        ["<f4", [-2], 0, -8],
        ["<f4", [2.0], 0, 8],
        ["<f4", [True, 2], 0, 8],
        ["<f4", "2", 0, 8],
        ["<f4", 2, 0, 8],
        ["<f4", [1 << 62, 1 << 62], 0, 1 << 126],
        ["<f4", [0, 1 << 80], 0, 0],
        ["<f4", [1] * 100, 0, 4],
        ["f", [2], 0],
        ["S4", [2], 0, 8],
        ["V4", [2], 0, 8],
        ["M8[s]", [1], 0, 8],
        ["i4,i4", [1], 0, 8],
        ["(2,)f4", [1], 0, 8],
        ["(1", [1], 0, 8],
        ["nonsense", [1], 0, 8],
        ["O", [3], 0, 8],
        ["O", [1], 0, 8],
        ["O", [1 << 62, 4], 0, 8],
        [None, [1], 0, 8],
        7,
        None,
        "abcd",
    ],
    ids=str,
)
def test_damaged_description_is_rejected(entry):
    with pytest.raises((ValueError, TypeError)):
        read_blocks([entry], np.zeros(8, np.uint8))


ENTRIES = [["<f4", [2, 3], 0, 24], ["O", [2], 64, 12], ["|b1", [], 128, 1]]


@given(strange(ENTRIES), st.integers(0, 200))
def test_any_description_is_an_error_or_gives_arrays_within_the_message(entries, size_bytes):
    payload = np.ones(size_bytes, np.uint8)
    try:
        seen = read_blocks(entries, payload)
    except (ValueError, TypeError):
        return
    for array in seen:
        assert array.nbytes <= payload.size or array.dtype == object
        array.tolist()
