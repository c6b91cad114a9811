"""Stores of responses: the interface, and the local store, which keeps the most recently used responses within a bound in bytes."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from stoker.server.caching.settings import ENTRY_OVERHEAD_BYTES, TENSOR_OVERHEAD_BYTES
from stoker.server.core.request import Array

Outputs = Mapping[str, Array]


class StoredResponse:
    """The outputs of one response. Nothing writes them.

    Attributes:
        outputs: By name; the arrays are read-only and own their memory.
        size_bytes: The memory that they take.
    """

    __slots__ = ("outputs", "size_bytes")

    def __init__(self, outputs: Outputs, size_bytes: int) -> None:
        self.outputs = outputs
        self.size_bytes = size_bytes


class ResponseStore(Protocol):
    """Holds responses by key. Confined to: the event loop.

    Attributes:
        is_shared: Whether other processes use the same responses, and this one after a restart.
    """

    is_shared: bool

    def get(self, key: bytes, found: Callable[[StoredResponse | None], None]) -> None:
        """Calls `found` once with the response of `key`, or None: before this method returns, or later on the event loop."""

    def put(self, key: bytes, response: StoredResponse) -> None:
        """Stores a response, if it fits."""

    def forget(self, identity: bytes) -> None:
        """Releases the memory of the responses whose keys begin with `identity`."""

    async def close(self) -> None:
        """Ends connections. Lookups in progress are misses."""


def copied(outputs: Outputs) -> StoredResponse:
    """A copy of `outputs` to store: a slice of a batch would keep the memory of the whole batch."""
    kept: dict[str, Array] = {}
    size_bytes = ENTRY_OVERHEAD_BYTES
    for name, array in outputs.items():
        own = np.array(array, order="C", copy=True)
        own.setflags(write=False)
        kept[name] = own
        size_bytes += memory_of(own)
    return StoredResponse(kept, size_bytes)


def memory_of(array: Array) -> int:
    """Bytes of memory that `array` takes, with the elements of BYTES."""
    size_bytes = array.nbytes + TENSOR_OVERHEAD_BYTES
    if array.dtype.hasobject:
        # The header of a bytes object takes 33 bytes, and objects are aligned.
        size_bytes += sum([len(element) + 48 for element in array.reshape(-1).tolist()])
    return size_bytes


class LocalStore:
    """Responses in this process, for all models. The least recently used ones are evicted. Confined to: the event loop.

    Attributes:
        size_bytes: Memory of all entries.
        evicted: Entries that were evicted.
    """

    is_shared = False

    def __init__(self, most_bytes: int) -> None:
        """Holds at most `most_bytes`."""
        self._most_bytes = most_bytes
        self._entries: OrderedDict[bytes, StoredResponse] = OrderedDict()
        self.size_bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        """Entries held."""
        return len(self._entries)

    def get(self, key: bytes, found: Callable[[StoredResponse | None], None]) -> None:
        response = self._entries.get(key)
        if response is not None:
            self._entries.move_to_end(key)
        found(response)

    def put(self, key: bytes, response: StoredResponse) -> None:
        if response.size_bytes > self._most_bytes:
            return
        self._drop(key)
        while self.size_bytes + response.size_bytes > self._most_bytes:
            self._drop(next(iter(self._entries)))
            self.evicted += 1
        self._entries[key] = response
        self.size_bytes += response.size_bytes

    def forget(self, identity: bytes) -> None:
        for key in [key for key in self._entries if key.startswith(identity)]:
            self._drop(key)

    async def close(self) -> None:
        self._entries.clear()
        self.size_bytes = 0

    def _drop(self, key: bytes) -> None:
        response = self._entries.pop(key, None)
        if response is not None:
            self.size_bytes -= response.size_bytes
