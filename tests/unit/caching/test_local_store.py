"""The local store: bounded in bytes, least recently used first out, entries that nothing changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.caching.response_store import LocalStore, StoredResponse, copied
from stoker.server.caching.settings import ENTRY_OVERHEAD_BYTES, TENSOR_OVERHEAD_BYTES


def entry(size_bytes: int) -> StoredResponse:
    return StoredResponse({}, size_bytes)


def get(store: LocalStore, key: bytes) -> StoredResponse | None:
    found: list[StoredResponse | None] = []
    store.get(key, found.append)
    (response,) = found
    return response


def test_least_recently_used_entry_is_evicted_first() -> None:
    store = LocalStore(30)
    for key in (b"a", b"b", b"c"):
        store.put(key, entry(10))
    assert get(store, b"a") is not None
    store.put(b"d", entry(15))
    assert [get(store, key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, False, True]
    assert (store.evicted, store.size_bytes, len(store)) == (2, 25, 2)


def test_response_larger_than_the_cache_is_not_stored_and_evicts_nothing() -> None:
    store = LocalStore(30)
    store.put(b"a", entry(10))
    store.put(b"b", entry(31))
    assert (get(store, b"a") is None, get(store, b"b") is None, store.evicted) == (False, True, 0)


def test_responses_of_a_forgotten_version_release_their_memory() -> None:
    store = LocalStore(100)
    for key in (b"one:a", b"one:b", b"two:a"):
        store.put(key, entry(10))
    store.forget(b"one:")
    assert (store.size_bytes, len(store), get(store, b"two:a") is None) == (10, 1, False)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 60)), max_size=30))
def test_store_never_exceeds_its_bound_and_its_size_is_that_of_its_entries(puts: list[tuple[bytes, int]]) -> None:
    store = LocalStore(50)
    latest: dict[bytes, int] = {}
    for key, size in puts:
        store.put(key, entry(size))
        if size <= 50:
            latest[key] = size
            assert get(store, key) is not None
        held = [response.size_bytes for each in latest if (response := get(store, each)) is not None]
        assert store.size_bytes == sum(held) <= 50


def test_stored_outputs_are_copies_that_nothing_writes() -> None:
    batch = np.arange(100, dtype=np.float32).reshape(10, 10)
    stored = copied({"OUT": batch[2:3]})
    batch[...] = 0
    kept = stored.outputs["OUT"]
    assert kept.tolist() == [list(range(20, 30))]
    assert kept.base is None
    with pytest.raises(ValueError, match="read-only"):
        kept[0, 0] = 1


def test_size_of_an_entry_includes_strings_and_objects() -> None:
    numbers = copied({"OUT": np.zeros((1, 1000), np.float32)})
    assert numbers.size_bytes == ENTRY_OVERHEAD_BYTES + TENSOR_OVERHEAD_BYTES + 4000
    texts = np.array([b"x" * 1000, b"y" * 500], dtype=np.object_)
    assert copied({"OUT": texts}).size_bytes >= ENTRY_OVERHEAD_BYTES + TENSOR_OVERHEAD_BYTES + 1500 + 2 * 33
