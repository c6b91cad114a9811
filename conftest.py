"""Settings for every test of the repository."""

import gc

import pytest
from hypothesis import HealthCheck, settings

# Machines that run tests are shared and slow at times; how long an example takes to make says nothing about the code.
settings.register_profile("stoker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", parent=settings.get_profile("stoker"), max_examples=20)
settings.load_profile("stoker")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--native`."""
    parser.addoption("--native", action="store_true", help="the run tests the compiled modules: a test fails unless all are compiled")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Takes the modules and the tests themselves, a million objects that live to the end, out of what every collection walks through."""
    gc.collect()
    gc.freeze()
