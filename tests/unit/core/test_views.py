"""Which views may be kept for as long as a slow client reads them."""

import numpy as np
import pytest

from stoker.server.core.views import is_whole, kept

LARGE = np.zeros((8, 100_000), np.float32)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (LARGE, True),
        (LARGE.reshape(4, -1), True),
        (LARGE[:], True),
        # The last rows of a batch are padding.
        (LARGE[:7], False),
        (LARGE[:1], False),
        (LARGE.reshape(-1)[:100_000].reshape(10, -1), False),
        # A tensor in its message, and one that is a small part of it.
        (np.frombuffer(bytes(100_000), np.uint8, 99_000, 1000), True),
        (np.frombuffer(bytes(100_000), np.uint8, 10_000, 1000), False),
        (np.frombuffer(memoryview(bytearray(100_000)).toreadonly(), np.uint8, 99_000, 1000), True),
        (np.frombuffer(memoryview(bytearray(100_000))[50_000:], np.uint8), False),
    ],
)
def test_view_is_whole_if_it_keeps_little_other_memory(view: np.ndarray, expected: bool):
    assert is_whole(view) is expected
    piece = view.data.cast("B")
    assert is_whole(piece) is expected
    found = kept(piece)
    assert found == piece
    assert np.shares_memory(np.frombuffer(found, np.uint8), view) is expected


def test_bytes_are_kept_as_they_are():
    data = b"some"
    assert kept(data) is data
