"""Memory for large messages."""

import numpy as np
import pytest

from stoker.server.net.receive_buffers import MessageBlocks

SIZE = 602_200


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


@pytest.mark.parametrize("lead_bytes", [0, 1, 63, 64, 1000])
@pytest.mark.parametrize("size_bytes", [70_000, 40 << 20])
def test_tensor_in_a_receive_buffer_is_aligned(size_bytes: int, lead_bytes: int):
    view = MessageBlocks().take(size_bytes, lead_bytes)
    assert len(view) == size_bytes
    assert not view.readonly
    assert (address(view) + lead_bytes) % 64 == 0


def whole_view(view: memoryview) -> object:
    return view.toreadonly()


def tensor_of(view: memoryview) -> object:
    return np.ndarray((10,), np.float32, view, 0)


def tensor_of_tensor(view: memoryview) -> object:
    return np.frombuffer(view, np.uint8)[100:].reshape(-1, 1).view(np.int8)[3:]


def inner_view(view: memoryview) -> object:
    return memoryview(np.frombuffer(view[1000:], np.uint8))[5:]  # type: ignore[arg-type]


@pytest.mark.parametrize("derive", [whole_view, tensor_of, tensor_of_tensor, inner_view])
def test_block_is_reused_once_nothing_refers_to_it(derive):
    blocks = MessageBlocks()
    view = blocks.take(SIZE, 0)
    where = address(view)
    derived = derive(view)
    del view
    others = [blocks.take(SIZE, 0) for _ in range(3)]
    assert where not in map(address, others)
    assert len({*map(address, others)}) == 3
    del derived
    # Another size of about as much: the same memory.
    assert address(blocks.take(SIZE + 100, 0)) == where


def test_kept_blocks_are_bounded():
    blocks = MessageBlocks()
    for size in range(1, 9):
        held = [blocks.take(size << 20, 0) for _ in range(20)]
        assert len({*map(address, held)}) == 20
        del held
    kept = {size: sum(whole.nbytes for whole in made) for size, made in blocks._made.items()}
    assert len(kept) == 4
    assert all(0 < each <= 16 << 20 for each in kept.values())
    assert len(blocks.take(17 << 20, 0)) == 17 << 20
    assert max(blocks._made) < 17 << 20


def test_large_block_is_reused_until_the_server_is_idle():
    blocks = MessageBlocks()
    view = blocks.take(40 << 20, 0)
    where = address(view)
    other = blocks.take(40 << 20, 0)
    assert address(other) != where
    del view
    assert address(blocks.take(40 << 20, 0)) == where
    blocks.forget_large()
    assert not blocks._large
    # Those in use live on.
    other[0] = 1


def test_kept_large_blocks_are_bounded():
    blocks = MessageBlocks()
    held = [blocks.take(size << 20, 0) for size in (100, 200, 150, 300, 600)]
    assert len({*map(address, held)}) == 5
    assert [whole.nbytes >> 20 for whole in blocks._large] == [150, 300]
