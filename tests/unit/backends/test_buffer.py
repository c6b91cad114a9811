import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stoker.backends.api.batch import Buffer
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType


def buffer(*dims: int, max_batch_size: int = 4, datatype: DataType = DataType.FP32) -> Buffer:
    return Buffer(TensorSpec("x", datatype, dims), max_batch_size)


def test_static_block_is_allocated_once() -> None:
    block = buffer(3)
    assert block.capacity_bytes == 4 * 3 * 4
    first = block.gather([np.ones((4, 3), np.float32)])
    second = block.gather([np.zeros((2, 3), np.float32)])
    assert np.shares_memory(first, second)
    assert block.capacity_bytes == 4 * 3 * 4


def test_variable_block_grows_to_the_largest_batch_seen() -> None:
    block = buffer(-1)
    assert block.capacity_bytes == 0
    block.gather([np.ones((2, 5), np.float32)])
    block.gather([np.ones((1, 3), np.float32)])
    assert block.capacity_bytes == 2 * 5 * 4


@given(
    arrays=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3).flatmap(
        lambda row: st.lists(st.integers(1, 3).flatmap(lambda rows: hnp.arrays(np.int32, (rows, *row))), min_size=1, max_size=4)
    ),
    padding=st.integers(0, 3),
)
def test_gather_equals_concatenation_padded_with_zeros(arrays: list[np.ndarray], padding: int) -> None:
    row = arrays[0].shape[1:]
    rows = sum(len(array) for array in arrays)
    block = Buffer(TensorSpec("x", DataType.INT32, tuple(-1 for _ in row)), 4)
    block.view(rows + padding, row).fill(-7)
    window = block.gather(arrays, rows + padding)
    assert window.flags.c_contiguous
    assert np.array_equal(window[:rows], np.concatenate(arrays))
    assert not window[rows:].any()


def test_release_clears_strings_and_keeps_numbers() -> None:
    strings = buffer(1, datatype=DataType.BYTES)
    window = strings.gather([np.array([[b"secret"]], dtype=object)])
    strings.release()
    assert window[0, 0] is None
    numbers = buffer(1)
    window = numbers.gather([np.ones((1, 1), np.float32)])
    numbers.release()
    assert window[0, 0] == 1


def test_block_beyond_host_memory_is_refused_by_name() -> None:
    with pytest.raises(ModelLoadError, match=r"input 'x' of dims .* too large for this host at max_batch_size 1000000"):
        buffer(10**9, 10**9, max_batch_size=1_000_000)
