"""Rings: FIFO, constant capacity, one producer and one consumer."""

import gc
import threading
import weakref
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.ipu.runtime import RingBuffer


def test_ring_of_no_elements_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        RingBuffer[int](0)


@given(capacity=st.integers(1, 5), pushes=st.lists(st.booleans(), max_size=60))
def test_ring_is_a_bounded_fifo(capacity: int, pushes: list[bool]) -> None:
    ring, model = RingBuffer[int](capacity), deque[int]()
    for number, is_push in enumerate(pushes):
        if is_push:
            assert ring.push(number) is (len(model) < capacity)
            if len(model) < capacity:
                model.append(number)
        else:
            assert ring.front() == (model[0] if model else None)
            assert ring.pop() == (model.popleft() if model else None)
        assert ring.read_available == len(model)
        assert ring.write_available == capacity - len(model)
        assert ring.capacity == capacity


def test_popped_element_is_released() -> None:
    ring = RingBuffer[np.ndarray](1)
    element = np.zeros(1)
    released = weakref.ref(element)
    ring.push(element)
    ring.pop()
    del element
    gc.collect()

    assert released() is None


@pytest.mark.slow
def test_producer_and_consumer_threads_preserve_the_order() -> None:
    ring, count, seen = RingBuffer[int](33), 1000, list[int]()

    def consume() -> None:
        while len(seen) < count:
            element = ring.pop()
            if element is not None:
                seen.append(element)

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    for number in range(1, count + 1):
        while not ring.push(number):
            pass
    consumer.join(20)

    assert seen == list(range(1, count + 1))
