"""HEAD has the response of GET without the body, on every GET route."""

import re

import pytest

from tests.fakes.declared_routes import declared_routes
from tests.unit.http1.test_direct_path import Peer, echo_engine, talk

_NAMES = {"model": "echo", "version": "1", "label": "none", "region": "none"}


def get_paths() -> list[str]:
    routes = declared_routes(echo_engine())
    return sorted({re.sub(r"{(\w+)}", lambda name: _NAMES[name[1]], path) for method, path in routes if method == "GET"})


async def head_of(peer: Peer, method: str, path: str) -> bytes:
    peer.writer.write(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    return await peer.reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize("path", get_paths())
def test_head_equals_get_without_the_body(path: str):
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
def test_head_is_refused_like_get(path: str):
    async def scenario(peer: Peer) -> None:
        for _ in range(2):
            assert (await head_of(peer, "HEAD", path)).startswith(b"HTTP/1.1 405 ")

    talk(scenario, echo_engine())
