"""One server for all protocol tests that only read, and the interpreter of the foreign clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, running_server

CLIENTS_PYTHON = REPOSITORY_ROOT / ".venv-clients" / "bin" / "python"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.protocol)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The sample repository, served; explicit control, so that load and unload can be tried."""
    with running_server(
        f"--model_base_path={SAMPLE_MODELS}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--grpc_reflection",
        at=tmp_path_factory.mktemp("server"),
    ) as running:
        yield running


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The interpreter that has tritonclient."""
    if not CLIENTS_PYTHON.exists():
        pytest.skip("the foreign clients are not installed: run 'make clients-env'")
    return CLIENTS_PYTHON
