"""An app that is loaded for its first request."""

import asyncio
import subprocess
import sys
import threading

import pytest

from stoker.server.web.app import DeferredApp


def test_it_is_built_once_however_many_ask_at_once():
    built: list[threading.Thread] = []
    answered: list[str] = []

    def build():
        built.append(threading.current_thread())

        async def app(scope: dict[str, str], _receive: object, _send: object) -> None:
            answered.append(scope["path"])

        return app

    async def run() -> None:
        app = DeferredApp(build)
        assert not built
        await asyncio.gather(*(app({"path": path}, None, None) for path in ("/a", "/b")))
        await app({"path": "/c"}, None, None)

    asyncio.run(run())
    assert len(built) == 1
    assert built[0] is not threading.main_thread()
    assert answered == ["/a", "/b", "/c"]


def test_who_leaves_while_it_is_built_takes_nothing_from_the_others():
    may_build = threading.Event()
    answered: list[str] = []

    def build():
        assert may_build.wait(30)

        async def app(scope: dict[str, str], _receive: object, _send: object) -> None:
            answered.append(scope["path"])

        return app

    async def run() -> None:
        app = DeferredApp(build)
        leaves = asyncio.create_task(app({"path": "/leaves"}, None, None))
        stays = asyncio.create_task(app({"path": "/stays"}, None, None))
        await asyncio.sleep(0)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        may_build.set()
        await stays

    asyncio.run(run())
    assert answered == ["/stays"]


def test_an_app_that_cannot_be_built_is_an_answer_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture):
    sent: list[dict[str, object]] = []

    def build():
        raise ImportError("no such package")

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    asyncio.run(DeferredApp(build)({"path": "/v2"}, None, send))
    assert sent[0]["status"] == 500
    assert "no such package" in caplog.text


@pytest.mark.slow
def test_the_front_itself_needs_no_fastapi():
    script = "import sys, stoker.server.web.http_server; sys.exit('fastapi' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
