"""Fixtures for tests of the GCU runtime."""

import threading

import pytest

from stoker.backends.gcu.runtime import GcuSystem


@pytest.fixture
def system():
    """One card, as fast as the host; it must be empty at the end."""
    made = GcuSystem()
    yield made
    made.close()


@pytest.fixture
def device(system):
    """All of that card."""
    return system.acquire()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Every stream's thread has ended when its test has."""
    yield
    assert [each.name for each in threading.enumerate() if each.name.startswith("gcu-")] == []
