"""The memory of the Python objects allocated within a block."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


class TracedMemory:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._before_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()

    def held_bytes(self) -> int:
        """The bytes allocated since and not yet freed."""
        return tracemalloc.get_traced_memory()[0] - self._before_bytes

    def peak_bytes(self) -> int:
        """The largest number of bytes allocated since at one time."""
        return tracemalloc.get_traced_memory()[1] - self._before_bytes


@contextmanager
def traced_memory() -> Iterator[TracedMemory]:
    tracemalloc.start()
    try:
        yield TracedMemory()
    finally:
        tracemalloc.stop()
