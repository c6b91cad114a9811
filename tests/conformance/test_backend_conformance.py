"""Every installed backend (entry-point group `stoker.backends`) passes the conformance checks of `stoker.backends.testing`."""

import importlib.util
from pathlib import Path

import pytest

from stoker.backends.api.backend import Backend
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.testing.conformance import CHECKS, NotApplicable
from tests.conformance.sample_models import DECOUPLED_ONLY, SAMPLES

REGISTRY = BackendRegistry()


@pytest.fixture(params=REGISTRY.names())
def backend(request: pytest.FixtureRequest) -> Backend:
    """The backend; the test is skipped where it needs the package of an extra that is not installed."""
    name = request.param
    if name in SAMPLES and SAMPLES[name].package and importlib.util.find_spec(SAMPLES[name].package) is None:
        pytest.skip(f"backend '{name}' needs the package '{SAMPLES[name].package}', an extra, which is not installed")
    return REGISTRY.get(name)


def test_backend_has_names_and_a_model_file(backend: Backend) -> None:
    assert backend.name
    assert backend.default_model_filename
    assert all(REGISTRY.get(spelling) is backend for spelling in (backend.name, *backend.platforms, *backend.aliases))


@pytest.mark.parametrize("check", CHECKS)
def test_backend_satisfies_the_plug_in_contract(backend: Backend, check: str, tmp_path: Path) -> None:
    if backend.name in DECOUPLED_ONLY:
        pytest.skip(f"backend '{backend.name}' serves decoupled models only, which have no batches")
    assert backend.name in SAMPLES, f"tests/conformance/sample_models.py has no samples of backend '{backend.name}'"
    try:
        CHECKS[check](backend, SAMPLES[backend.name], tmp_path)
    except NotApplicable as reason:
        pytest.skip(str(reason))
