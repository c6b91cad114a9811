"""The command, run in this process against a fake server."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from stoker.cli.main import main
from tests.fakes.fake_kserve import FakeKserve


@dataclass(frozen=True)
class Ran:
    """The outcome of a command line."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def fake_server() -> Iterator[FakeKserve]:
    server = FakeKserve()
    yield server
    server.close()


@pytest.fixture
def fake(fake_server: FakeKserve, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKserve]:
    monkeypatch.setenv("STOKER_URL", fake_server.http_url)
    yield fake_server
    fake_server.reset()


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs `stoker` with the words given."""

    def run(*words: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(words)
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return run
