"""An app that is loaded for its first request."""

import asyncio
import subprocess
import sys
import threading

import pytest

from stoker.server.web.app import DeferredApp


def test_application_is_built_once_for_concurrent_requests():
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


def test_cancelled_waiter_does_not_cancel_the_build_for_others():
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


def test_failed_build_is_an_error_response_and_a_log_line(caplog: pytest.LogCaptureFixture):
    sent: list[dict[str, object]] = []

    def build():
        raise ImportError("no such package")

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    asyncio.run(DeferredApp(build)({"path": "/v2"}, None, send))
    assert sent[0]["status"] == 500
    assert "no such package" in caplog.text


@pytest.mark.slow
def test_http_listener_imports_no_fastapi():
    script = "import sys, stoker.server.web.http_server; sys.exit('fastapi' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
