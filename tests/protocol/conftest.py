"""One server for all protocol tests that only read, and the interpreter of the foreign clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.child_processes import Children, child_processes
from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, running_server

CLIENTS_PYTHON = REPOSITORY_ROOT / ".venv-clients" / "bin" / "python"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.protocol)


@pytest.fixture(scope="session", params=["h2", "grpcio"])
def grpc_front(request: pytest.FixtureRequest) -> str:
    """The flag for the gRPC transport; each request to such a server is sent on both."""
    return f"--grpc-front={request.param}"


@pytest.fixture(scope="session")
def http_front(grpc_front: str) -> str:
    """The flag for the HTTP server: the native one beside native HTTP/2, uvicorn beside grpcio. Each runs every test."""
    return f"--http-front={'stoker' if grpc_front.endswith('=h2') else 'uvicorn'}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, grpc_front: str, http_front: str) -> Iterator[ServerProcess]:
    """The sample repository, served; explicit control, so that load and unload can be tried."""
    with running_server(
        f"--model_base_path={SAMPLE_MODELS}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--grpc_reflection",
        grpc_front,
        http_front,
        at=tmp_path_factory.mktemp("server"),
    ) as running:
        yield running


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The interpreter that has tritonclient."""
    if not CLIENTS_PYTHON.exists():
        pytest.skip("the foreign clients are not installed: run 'make clients-env'")
    return CLIENTS_PYTHON


@pytest.fixture
def children() -> Iterator[Children]:
    """Starts child processes, which end with the test."""
    with child_processes() as started:
        yield started
