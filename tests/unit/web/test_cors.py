"""Cross-origin resource sharing: the headers for browsers, on the fast path and on all others."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import numpy as np
import pytest

from stoker.server.core.limits import Limits
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.services import Services
from stoker.server.protocols.settings import KServeSettings
from stoker.server.rpc.restricted import Category, Key
from stoker.server.web.http_server import http_server
from stoker.server.web.settings import CorsSettings
from tests.fakes.fake_engine import FakeEngine, simple

PAGE = "https://app.example"
INFER = "/v2/models/simple/infer"
PREFLIGHT = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "content-type,x-key"}
PATHS = [INFER, "/v2", "/v2/health/ready", "/v1/models/simple:predict", "/metrics", "/no/such/route"]
Scenario = Callable[[httpx.AsyncClient], Awaitable[None]]


def run(scenario: Scenario, *origins: str, settings: KServeSettings | None = None) -> None:
    async def main() -> None:
        extensions = None if settings is None else Extensions(Limits(), settings)
        cors = CorsSettings(frozenset(origins))
        served = http_server(Services(FakeEngine(simple()), Limits(), extensions=extensions), "127.0.0.1", 0, cors=cors)
        port = await served.start()
        try:
            async with asyncio.timeout(20), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                await scenario(client)
        finally:
            await served.stop(1)

    asyncio.run(main())


def body() -> bytes:
    tensors = [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))} for i in (0, 1)]
    return json.dumps({"inputs": tensors}).encode()


def binary() -> tuple[bytes, dict[str, str]]:
    values = np.arange(16, dtype=np.int32).tobytes()
    tensors = [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 64}} for i in (0, 1)]
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    return head + values * 2, {"inference-header-content-length": str(len(head))}


def shared(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control") or name == "vary"}


def test_cors_is_off_by_default():
    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.post(INFER, content=body(), headers={"origin": PAGE})
        assert response.status_code == 200
        assert shared(response) == {}
        assert (await client.options(INFER, headers=PREFLIGHT)).status_code == 405

    run(scenario)


@pytest.mark.parametrize("path", PATHS)
def test_preflight_request_gets_a_response_on_every_path(path):
    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.options(path, headers=PREFLIGHT)
        assert (response.status_code, response.content) == (200, b"")
        assert shared(response) == {
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": "GET, HEAD, POST",
            "access-control-allow-headers": "content-type,x-key",
            "access-control-max-age": "600",
            "vary": "origin, access-control-request-method, access-control-request-headers",
        }

    run(scenario, PAGE, "https://other.example")


def test_preflight_request_of_another_origin_is_refused():
    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.options(INFER, headers={**PREFLIGHT, "origin": "https://evil.example"})
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
        assert "https://evil.example may not use this server" in response.json()["error"]
        # The connection goes on.
        assert (await client.get("/v2/health/live")).status_code == 200

    run(scenario, PAGE)


def test_direct_responses_are_readable_with_their_header_length():
    async def scenario(client: httpx.AsyncClient) -> None:
        expected = {
            "access-control-allow-origin": PAGE,
            "access-control-expose-headers": "inference-header-content-length, retry-after",
            "vary": "origin",
        }
        plain = await client.post(INFER, content=body(), headers={"origin": PAGE})
        assert (plain.status_code, shared(plain)) == (200, expected)
        assert plain.json()["outputs"][0]["data"][3] == 6
        content, fields = binary()
        packed = await client.post(INFER, content=content, headers={"origin": PAGE, **fields})
        assert (packed.status_code, shared(packed)) == (200, expected)
        assert len(packed.content) == int(packed.headers["inference-header-content-length"]) + 128
        refused = await client.post(INFER, content=b"{", headers={"origin": PAGE})
        assert (refused.status_code, shared(refused)) == (400, expected)

    run(scenario, PAGE)


@pytest.mark.parametrize(("path", "status"), [("/v2", 200), ("/v2/models/none", 400), ("/v1/models/none", 404), ("/none", 404)])
def test_responses_of_other_routes_are_readable_too(path, status):
    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.get(path, headers={"origin": PAGE})
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == PAGE
        # Caches between must not give one page's answer to another.
        assert (await client.get(path)).headers["vary"] == "origin"
        assert "access-control-allow-origin" not in (await client.get(path, headers={"origin": "https://evil.example"})).headers

    run(scenario, PAGE)


def test_any_origin_is_a_star_and_never_with_credentials():
    async def scenario(client: httpx.AsyncClient) -> None:
        for response in (
            await client.options(INFER, headers=PREFLIGHT),
            await client.post(INFER, content=body(), headers={"origin": PAGE}),
            await client.get("/v2", headers={"origin": "null"}),
        ):
            assert response.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in response.headers
        assert shared(await client.get("/v2")) == {}

    run(scenario, "*")


def test_preflight_request_needs_no_key_but_the_call_does():
    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.options(INFER, headers=PREFLIGHT)).status_code == 200
        refused = await client.post(INFER, content=body(), headers={"origin": PAGE})
        assert refused.status_code == 403
        assert refused.headers["access-control-allow-origin"] == PAGE
        assert (await client.post(INFER, content=body(), headers={"origin": PAGE, "x-key": "k"})).status_code == 200

    run(scenario, PAGE, settings=KServeSettings(http_restricted={Category.INFERENCE: Key("x-key", "k")}))
