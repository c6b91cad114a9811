"""HEAD is answered as GET is, without the body, on every route that has GET."""

import re
from typing import Any

import pytest

from stoker.server.core.limits import Limits
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.adlik.settings import AdlikSettings
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.tfs.settings import METRICS_PATH
from stoker.server.web.routes import RestRoutes
from stoker.server.web.v1 import HttpV1
from tests.unit.http.test_short_path import Peer, echo_engine, talk

_NAMES = {"model": "echo", "version": "1", "label": "none", "region": "none"}


def get_paths() -> list[str]:
    engine, limits = echo_engine(), Limits()
    v1 = HttpV1(engine, limits, AdlikService(engine, limits, AdlikSettings()))
    app = RestRoutes(engine, limits, HttpInfer(engine, limits), v1, metrics=True, serving_path=METRICS_PATH).app()
    routes: Any = app.routes
    return sorted({re.sub(r"{(\w+)}", lambda name: _NAMES[name[1]], route.path) for route in routes if "GET" in route.methods})


async def head_of(peer: Peer, method: str, path: str) -> bytes:
    peer.writer.write(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    return await peer.reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize("path", get_paths())
def test_head_is_get_without_the_body(path: str):
    async def scenario(peer: Peer) -> None:
        # Whatever the answer to HEAD had behind its head would stand before the next one.
        first = await head_of(peer, "HEAD", path)
        again = await head_of(peer, "HEAD", path)
        whole = await head_of(peer, "GET", path)
        assert first == again == whole
        assert b"405" not in whole.splitlines()[0]
        length = int(whole.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(await peer.reader.readexactly(length)) == length

    talk(scenario, echo_engine())


@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v2/repository/index"])
def test_head_is_refused_where_get_is(path: str):
    async def scenario(peer: Peer) -> None:
        for _ in range(2):
            assert (await head_of(peer, "HEAD", path)).startswith(b"HTTP/1.1 405 ")

    talk(scenario, echo_engine())
