"""The cyclic garbage collector: seldom under load, and completely when the server is idle."""

import gc
import weakref

from stoker.server.tuning.constants import COLLECTION_OBJECTS
from stoker.server.tuning.garbage_collection import collecting_seldom
from stoker.server.tuning.heap_trim import trim_all


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_a_thousand_requests_in_flight_start_no_collection():
    collections: list[dict[str, int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collections.append(info)

    thresholds = gc.get_threshold()
    with collecting_seldom():
        gc.collect()
        gc.callbacks.append(note)
        try:
            in_flight = [[each] for each in range(20_000)]
        finally:
            gc.callbacks.remove(note)
    assert len(in_flight) < COLLECTION_OBJECTS
    assert not collections
    assert gc.get_threshold() == thresholds, "the process is as it was"


def test_idle_trim_frees_what_reference_cycles_hold():
    gc.collect()
    gc.disable()
    try:
        knot = weakref.ref(Knot())
        assert knot() is not None
        trim_all([])
        assert knot() is None
    finally:
        gc.enable()
