"""The HTTP server in process, on a free port, with a fake engine."""

import asyncio
import base64
import gc
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from stoker.backends.api.errors import ModelLoadError, Overloaded, QueueTimeout, TooLarge, Unavailable
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import Done, InferRequest, InferResponse, InFlight
from stoker.server.protocols.services import Services
from stoker.server.web.http_server import http_server, metrics_server
from stoker.server.web.settings import HttpFront
from tests.fakes.fake_engine import FakeEngine, echo, simple

ROW = list(range(16))
#: The HTTP server under test.
FRONT = HttpFront.STOKER


@pytest.fixture(params=list(HttpFront), autouse=True)
def http_front(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs every test on the native HTTP/1.1 server and on uvicorn."""
    monkeypatch.setattr(f"{__name__}.FRONT", request.param)


@asynccontextmanager
async def front(engine: FakeEngine, limits: Limits | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    served = http_server(Services(engine, limits or Limits()), "127.0.0.1", 0, front=FRONT, **options)
    port = await served.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"accept-encoding": "identity"}, timeout=60) as client:
            yield client
    finally:
        await served.stop(1)


def run(
    scenario: Callable[[httpx.AsyncClient], Awaitable[None]], engine: FakeEngine, limits: Limits | None = None, **options: bool
) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), front(engine, limits, **options) as client:
            await scenario(client)

    asyncio.run(main())
    assert engine.reserved_bytes == 0


def json_request(**fields: Any) -> dict[str, Any]:
    tensors = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": ROW} for name in ("INPUT0", "INPUT1")]
    return {"inputs": tensors, **fields}


def test_json_infer_response_has_tritons_key_order():
    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.post("/v2/models/simple/infer", json=json_request(id="7"))
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.json() == {
            "id": "7",
            "model_name": "simple",
            "model_version": "1",
            "outputs": [
                {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16], "data": [2 * value for value in ROW]},
                {"name": "OUTPUT1", "datatype": "INT32", "shape": [1, 16], "data": [0] * 16},
            ],
        }
        assert list(response.json()) == ["id", "model_name", "model_version", "outputs"]
        assert "id" not in (await client.post("/v2/models/simple/versions/1/infer", json=json_request())).json()

    run(scenario, FakeEngine(simple()))


def test_no_route_needs_a_content_type():
    async def scenario(client: httpx.AsyncClient) -> None:
        for path, body in (
            ("/v2/models/simple/infer", json_request()),
            ("/v2/repository/index", {"ready": True}),
            ("/v2/repository/models/simple/load", {}),
        ):
            for kind in (None, "text/plain", "application/x-www-form-urlencoded"):
                headers = {} if kind is None else {"content-type": kind}
                response = await client.post(path, content=orjson.dumps(body), headers=headers)
                assert response.status_code == 200, (path, kind)

    run(scenario, FakeEngine(simple()))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_and_responses_are_compressed_as_headers_name(encoding: str):
    async def scenario(client: httpx.AsyncClient) -> None:
        data = np.arange(5000, dtype=np.float32)
        head = orjson.dumps(
            {
                "inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 5000], "parameters": {"binary_data_size": data.nbytes}}],
                "parameters": {"binary_data_output": True},
            }
        )
        body = head + data.tobytes()
        response = await client.post(
            "/v2/models/echo_fp32/infer",
            content=gzip.compress(body) if encoding == "gzip" else zlib.compress(body),
            headers={
                "content-encoding": encoding,
                "inference-header-content-length": str(len(head)),
                "accept-encoding": f"br, {encoding}",
            },
        )
        assert response.status_code == 200, response.text
        assert response.headers["content-encoding"] == encoding
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.content[int(response.headers["inference-header-content-length"]) :] == data.tobytes()

    run(scenario, FakeEngine(echo(DataType.FP32)))


def test_unknown_encoding_gets_501_with_the_supported_ones():
    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.post("/v2/models/simple/infer", content=b"x", headers={"content-encoding": "br"})
        assert response.status_code == 501
        assert response.headers["accept-encoding"] == "gzip, deflate"

    run(scenario, FakeEngine(simple()))


def test_classification_returns_the_models_labels():
    fake = simple()
    fake.labels = {"OUTPUT0": [f"class {i}" for i in range(16)]}

    async def scenario(client: httpx.AsyncClient) -> None:
        outputs = [{"name": "OUTPUT0", "parameters": {"classification": 2}}]
        response = await client.post("/v2/models/simple/infer", json=json_request(outputs=outputs))
        assert response.json()["outputs"] == [
            {"name": "OUTPUT0", "datatype": "BYTES", "shape": [1, 2], "data": ["30:15:class 15", "28:14:class 14"]}
        ]

    run(scenario, FakeEngine(fake))


ERRORS = [
    ("POST", "/v2/models/nope/infer", 400, "Request for unknown model: 'nope' is not found"),
    ("POST", "/v2/models/simple/versions/9/infer", 404, "'simple' version 9 is not found"),
    ("POST", "/v2/models/simple/versions/x/infer", 404, "Not Found"),
    ("POST", "/v2/models/busy/infer", 503, "is not ready"),
    ("GET", "/v2/models/simple/infer", 405, "Method Not Allowed"),
    ("POST", "/v2/models/simple", 405, "Method Not Allowed"),
    ("DELETE", "/v2", 405, "Method Not Allowed"),
    ("GET", "/v3", 404, "Not Found"),
    ("GET", "/v2/", 404, "Not Found"),
    ("GET", "/v2/models/nope", 400, "Request for unknown model"),
    ("GET", "/v2/models/simple/versions/9/config", 404, "is not found"),
    ("GET", "/v2/models/...", 400, "invalid model name '...'"),
    ("GET", "/v2/models/%24(id)", 400, "invalid model name '$(id)'"),
    ("POST", "/v2/models/a;id/infer", 400, "invalid model name 'a;id'"),
    ("GET", f"/v2/models/{'m' * 129}", 400, "invalid model name"),
    ("GET", "/v2/models/a%0ab/stats", 400, "invalid model name"),
    ("GET", "/v2/models/a%2f..%2fb", 404, "Not Found"),
    ("POST", "/v2/repository/models/%2e%2e/load", 400, "invalid model name '..'"),
    ("POST", "/v2/repository/mine/index", 501, "'repository_name' specification is not supported"),
    ("POST", "/v2/repository/mine/models/simple/load", 501, "'repository_name' specification is not supported"),
    ("GET", "/v2/trace/setting", 501, "trace settings"),
    ("POST", "/v2/models/simple/trace/setting", 501, "trace settings"),
    ("GET", "/v2/logging", 501, "dynamic logging"),
    ("POST", "/v2/systemsharedmemory/region/r/register", 501, "Client shared memory is disabled. Start the server with"),
    ("POST", "/v2/cudasharedmemory/region/r/register", 400, "GPUs not supported"),
]


@pytest.mark.parametrize(("method", "path", "status", "text"), ERRORS, ids=[f"{m} {p[:50]}" for m, p, _, _ in ERRORS])
def test_every_failure_is_json_with_its_status(method: str, path: str, status: int, text: str):
    busy = echo(DataType.FP32, name="busy")
    busy.is_ready = False

    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.request(method, path, content=b"{}" if method == "POST" else None)
        assert response.status_code == status
        assert response.headers["content-type"] == "application/json"
        assert list(response.json()) == ["error"]
        assert text in response.json()["error"]

    run(scenario, FakeEngine(simple(), busy))


@pytest.mark.parametrize(
    ("error", "status", "after", "text"),
    [
        (Overloaded("Exceeds maximum queue size", retry_after_s=2.5), 503, "3", "[request id: 7] Exceeds maximum queue size"),
        (QueueTimeout("Request timeout expired"), 503, None, "[request id: 7] Request timeout expired"),
        (Unavailable("draining"), 503, None, "draining"),
    ],
)
def test_engine_failures_reach_the_client(error: Exception, status: int, after: str | None, text: str):
    fake = simple()

    async def fail(request: InferRequest) -> None:
        raise error

    fake.before = fail

    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.post("/v2/models/simple/infer", json=json_request(id="7"))
        assert (response.status_code, response.headers.get("retry-after"), response.json()) == (status, after, {"error": text})
        assert "connection" not in response.headers

    run(scenario, FakeEngine(fake))


@pytest.mark.parametrize("path", ["/v2/models/simple/infer", "/v2/models/sim%70le/infer"])
def test_internal_error_is_logged_and_hidden_from_clients(path: str, caplog: pytest.LogCaptureFixture):
    class BrokenEngine(FakeEngine):
        def submit(self, request: InferRequest, done: Done) -> InFlight:
            raise RuntimeError("secret /etc/path")

        async def infer(self, request: InferRequest) -> InferResponse:
            raise RuntimeError("secret /etc/path")

    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.post(path, json=json_request(id="7"))
        assert (response.status_code, response.json()) == (500, {"error": "internal error: see the server's log"})
        assert "connection" not in response.headers

    run(scenario, BrokenEngine(simple()))
    assert "secret" in caplog.text


@pytest.mark.parametrize("path", ["/metrics", "/v2/health/live"])
def test_internal_error_of_a_plain_route_is_logged_and_hidden_from_clients(path: str, caplog: pytest.LogCaptureFixture):
    class BrokenEngine(FakeEngine):
        def metrics_text(self) -> bytes:
            raise RuntimeError("secret /etc/path")

        def is_live(self) -> bool:
            raise RuntimeError("secret /etc/path")

    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.get(path)
        assert (response.status_code, response.json()) == (500, {"error": "internal error: see the server's log"})

    run(scenario, BrokenEngine(simple()))
    assert "secret" in caplog.text


@pytest.mark.parametrize("model", ["simple", "sim%70le"])
def test_failure_is_counted_for_the_requested_version(model: str):
    async def scenario(client: httpx.AsyncClient) -> None:
        for version in ("", "/versions/1", "/versions/7"):
            assert (await client.post(f"/v2/models/{model}{version}/infer", content=b"{}")).is_error

    engine = FakeEngine(simple())
    run(scenario, engine)
    assert (engine.failed_models, engine.failed_versions) == (["simple"] * 3, [None, 1, 7])


def test_health_is_reported_by_status_and_body():
    async def scenario(client: httpx.AsyncClient) -> None:
        for path, key, value, status in (
            ("/v2/health/live", "live", True, 200),
            ("/v2/health/ready", "ready", False, 400),
            ("/v2/models/simple/ready", "ready", True, 200),
            ("/v2/models/simple/versions/2/ready", "ready", False, 400),
            ("/v2/models/nope/ready", "ready", False, 400),
        ):
            response = await client.get(path)
            assert (response.status_code, response.json()[key]) == (status, value), path

    engine = FakeEngine(simple())
    engine.ready = False
    run(scenario, engine)


def test_descriptions_are_printed_like_triton():
    async def scenario(client: httpx.AsyncClient) -> None:
        server = (await client.get("/v2")).json()
        assert server["name"] == "fake"
        metadata = (await client.get("/v2/models/simple")).json()
        assert metadata["versions"] == ["1"]
        assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
        config = (await client.get("/v2/models/simple/versions/1/config")).json()
        assert config["max_batch_size"] == 8
        assert config["input"][0]["data_type"] == "TYPE_INT32"
        assert config["input"][0]["optional"] is False
        assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 100
        assert config["parameters"] == {"answer": {"string_value": "42"}}
        assert "sequence_batching" not in config
        stats = (await client.get("/v2/models/simple/stats")).json()["model_stats"]
        assert stats[0]["inference_stats"]["queue"] == {"count": 3, "ns": 3000}
        assert stats[0]["inference_stats"]["cache_miss"] == {"count": 0, "ns": 0}
        assert (await client.get("/v2/models/stats")).json()["model_stats"] == stats
        index = (await client.post("/v2/repository/index")).json()
        assert index == [{"name": "simple", "version": "1", "state": "READY"}, {"name": "never"}]
        assert (await client.post("/v2/repository/index", content=b'{"ready":true}')).json() == index[:1]
        assert (await client.get("/v2/systemsharedmemory/status")).json() == []
        assert (await client.post("/v2/cudasharedmemory/region/x/unregister")).status_code == 200

    run(scenario, FakeEngine(simple()))


def test_load_and_unload_pass_their_parameters_on():
    engine = FakeEngine(simple())

    async def scenario(client: httpx.AsyncClient) -> None:
        parameters = {"config": "{}", "file:1/model.onnx": base64.b64encode(b"abc").decode()}
        assert (await client.post("/v2/repository/models/m/load", json={"parameters": parameters})).status_code == 200
        assert (await client.post("/v2/repository/models/m/load")).status_code == 200
        assert (await client.post("/v2/repository/models/m/unload", json={"parameters": {"unload_dependents": True}})).status_code == 200

    run(scenario, engine)
    (_, first), (_, second) = engine.loads
    assert (first.config_json, first.files) == ("{}", {"1/model.onnx": b"abc"})
    assert (second.config_json, second.files) == (None, {})
    assert engine.unloads == [("m", True)]


@pytest.mark.parametrize(
    ("action", "body", "text"),
    [
        ("load", {"parameters": {"config": 7}}, "load parameter 'config' must be a string"),
        ("load", {"parameters": {"other": "x"}}, "unrecognized load parameter 'other'"),
        ("load", {"parameters": {"file:1/m": "abc="}}, "must be given along with"),
        ("load", {"parameters": {"config": "{}", "file:1/m": "!"}}, "must be base64"),
        ("load", {"parameters": 7}, "'parameters' must be an object"),
        ("load", [], "must be a JSON object"),
        ("unload", {"parameters": {"unload_dependents": "yes"}}, "must be a boolean"),
    ],
)
def test_bad_control_requests_are_refused(action: str, body: Any, text: str):
    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.post(f"/v2/repository/models/m/{action}", json=body)
        assert response.status_code == 400
        assert text in response.json()["error"]

    run(scenario, FakeEngine())


@pytest.mark.parametrize("said", ["no version is available", "failed to load 'm', no version is available"])
def test_failed_load_names_the_model(said: str):
    engine = FakeEngine()
    engine.load_error = ModelLoadError(said)

    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.post("/v2/repository/models/m/load")
        assert response.status_code == 400
        assert response.json() == {"error": "failed to load 'm', no version is available"}

    run(scenario, engine)


def test_disconnected_client_cancels_its_request():
    fake = simple()
    engine = FakeEngine(fake)

    async def wait(request: InferRequest) -> None:
        await asyncio.Event().wait()

    fake.before = wait

    async def scenario(client: httpx.AsyncClient) -> None:
        posting = asyncio.create_task(client.post("/v2/models/simple/infer", json=json_request()))
        await engine.arrival.wait()
        posting.cancel()
        await engine.cancellation.wait()
        assert (await client.get("/v2/health/live")).status_code == 200

    run(scenario, engine)
    assert len(engine.cancelled) == 1


def test_oversized_bodies_are_refused_before_and_while_they_arrive():
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bytes(1000)

    async def scenario(client: httpx.AsyncClient) -> None:
        for path in ("/v2/models/simple/infer", "/v2/repository/index"):
            assert (await client.post(path, content=bytes(20_001))).status_code == 413
            assert (await client.post(path, content=chunks())).status_code == 413
            bomb = gzip.compress(bytes(1 << 20))
            assert (await client.post(path, content=bomb, headers={"content-encoding": "gzip"})).status_code == 413

    engine = FakeEngine(simple())
    run(scenario, engine, Limits(http_body_bytes=20_000, json_values=10_000))
    assert engine.peak_bytes < 100_000


def test_memory_amplifier_is_refused_by_count_and_by_budget():
    amplifier = b'{"inputs":[' + b"{}," * 5000 + b"{}]}"

    async def refused_by_count(client: httpx.AsyncClient) -> None:
        assert (await client.post("/v2/models/simple/infer", content=amplifier)).status_code == 413

    async def refused_by_budget(client: httpx.AsyncClient) -> None:
        response = await client.post("/v2/models/simple/infer", content=amplifier)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")

    run(refused_by_count, FakeEngine(simple()), Limits(json_objects=1000))
    run(refused_by_budget, FakeEngine(simple(), budget_bytes=20 * len(amplifier)))


def test_large_text_is_decoded_off_the_loop_with_the_same_response():
    data = np.arange(4000, dtype=np.float64)

    async def scenario(client: httpx.AsyncClient) -> None:
        tensor = {"name": "INPUT", "datatype": "FP64", "shape": [1, 4000], "data": data.tolist()}
        response = await client.post("/v2/models/echo_fp64/infer", json={"inputs": [tensor]})
        assert response.json()["outputs"][0]["data"] == data.tolist()

    run(scenario, FakeEngine(echo(DataType.FP64)), Limits(decode_inline_bytes=100))


def test_documentation_describes_every_route():
    async def scenario(client: httpx.AsyncClient) -> None:
        document = (await client.get("/openapi.json")).json()
        references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
        assert references <= document["components"]["schemas"].keys()
        assert "$defs" not in json.dumps(document)
        paths = document["paths"]
        infer = paths["/v2/models/{model}/versions/{version}/infer"]["post"]
        assert [p["name"] for p in infer["parameters"]] == ["model", "version"]
        assert "inputs" in infer["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert {"/v2", "/v2/health/live", "/v2/repository/index", "/metrics"} <= paths.keys()
        for path in [path for path in paths if path.startswith("/v1/") and not path.endswith("ml_predict")]:
            for method, operation in paths[path].items():
                assert "schema" in operation["responses"]["200"]["content"]["application/json"]
                assert (method == "post") == ("requestBody" in operation), f"{method} {path}"
        page = await client.get("/docs")
        assert "text/html" in page.headers["content-type"]
        assert "openapi.json" in page.text
        script = re.search(r"<script>(.*)</script>", page.text, re.DOTALL)
        assert script is not None
        digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in page.headers["content-security-policy"]
        assert "default-src 'none'" in page.headers["content-security-policy"]
        # A page that works where the internet is out of reach.
        assert "http://" not in page.text
        assert "https://" not in page.text

    run(scenario, FakeEngine(simple()))


def test_browsers_get_pages():
    async def scenario(client: httpx.AsyncClient) -> None:
        for path, text in (("/models/nope", "nope"), ("/models/simple/versions/9", "9"), ("/models/%3Cb%3E", "&lt;b&gt;")):
            response = await client.get(path)
            assert response.headers["content-type"] == "text/html; charset=utf-8", path
            assert response.status_code in (400, 404), path
            assert text in response.text, path
            assert "<b>" not in response.text
        assert (await client.get("/models/nope")).status_code == 404
        moved = await client.get("/models/")
        assert (moved.status_code, moved.headers["location"]) == (307, "../models")

    run(scenario, FakeEngine(simple()))


def test_metrics_are_text_and_can_be_disabled():
    async def on(client: httpx.AsyncClient) -> None:
        response = await client.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert response.content.endswith(b"fake_total 1\n")

    async def off(client: httpx.AsyncClient) -> None:
        assert (await client.get("/metrics")).status_code == 404

    run(on, FakeEngine())
    run(off, FakeEngine(), metrics=False)


def test_metrics_listener_serves_only_metrics():
    async def main() -> None:
        served = metrics_server(FakeEngine(), Limits(), "127.0.0.1", 0, front=FRONT)
        port = await served.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert (await client.get("/metrics")).text.endswith("fake_total 1\n")
            assert (await client.get("/v2")).status_code == 404
            assert (await client.post("/metrics")).status_code == 405
        await served.stop(1)

    asyncio.run(main())


def test_control_requests_are_limited_to_a_small_size_except_loads():
    engine = FakeEngine(simple())
    padding = b" " * 70_000

    async def scenario(client: httpx.AsyncClient) -> None:
        for path in ("/v2/repository/index", "/v2/repository/models/m/unload"):
            assert (await client.post(path, content=padding + b"{}")).status_code == 413
            assert (
                await client.post(path, content=gzip.compress(padding + b"{}"), headers={"content-encoding": "gzip"})
            ).status_code == 413
        content = base64.b64encode(bytes(range(256)) * 8000).decode()
        given = {"parameters": {"config": "{}", "file:1/model.onnx": content}}
        response = await client.post("/v2/repository/models/m/load", json=given)
        assert response.status_code == 200
        # A piece with padding inside is no base64, whatever piece it is.
        given["parameters"]["file:1/model.onnx"] = "AA==" * 400_000
        response = await client.post("/v2/repository/models/m/load", json=given)
        assert (response.status_code, "must be base64" in response.text) == (400, True)

    run(scenario, engine)
    assert [dict(overrides.files) for _, overrides in engine.loads] == [{"1/model.onnx": bytes(range(256)) * 8000}]


def test_load_holds_its_reservation_until_it_ends():
    engine = FakeEngine(simple())
    held: list[int] = []

    async def load(name: str, overrides: Any) -> None:
        held.append(engine.reserved_bytes)

    engine.load = load  # type: ignore[method-assign]

    async def scenario(client: httpx.AsyncClient) -> None:
        body = orjson.dumps({"parameters": {"config": " " * 400_000}})
        assert (await client.post("/v2/repository/models/m/load", content=body)).status_code == 200
        assert held == [3 * len(body)]

    run(scenario, engine)


@pytest.mark.parametrize("as_json", [True, False])
def test_strings_are_counted_and_bounded_before_they_are_decoded(as_json: bool):
    engine = FakeEngine(echo(DataType.BYTES, name="text"))
    count = 10_000
    tensor: dict[str, Any] = {"name": "INPUT", "datatype": "BYTES", "shape": [1, count]}
    blob = b"" if as_json else b"\x01\x00\x00\x00a" * count
    tensor |= {"data": ["a"] * count} if as_json else {"parameters": {"binary_data_size": len(blob)}}
    head = orjson.dumps({"inputs": [tensor]})
    headers = {"Inference-Header-Content-Length": str(len(head))}

    async def scenario(client: httpx.AsyncClient) -> None:
        response = await client.post("/v2/models/text/infer", content=head + blob, headers=headers)
        assert response.json()["outputs"][0]["data"] == ["a"] * count
        assert engine.peak_bytes > len(blob) + 60 * count

    async def bounded(client: httpx.AsyncClient) -> None:
        response = await client.post("/v2/models/text/infer", content=head + blob, headers=headers)
        assert response.status_code == 413
        assert "10000 elements of data-type BYTES, more than the 9999 allowed" in response.text

    run(scenario, engine)
    run(bounded, engine, Limits(string_elements=9_999))


def test_large_json_responses_are_encoded_in_consistent_pieces():
    numbers = np.arange(150_000, dtype=np.float32)
    numbers[[0, 70_000, 149_999]] = [np.nan, np.inf, -np.inf]
    head = orjson.dumps(
        {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, numbers.size], "parameters": {"binary_data_size": numbers.nbytes}}]}
    )

    async def scenario(client: httpx.AsyncClient) -> None:
        headers = {"Inference-Header-Content-Length": str(len(head))}
        response = await client.post("/v2/models/echo_fp32/infer", content=head + numbers.tobytes(), headers=headers)
        np.testing.assert_array_equal(np.array(json.loads(response.text)["outputs"][0]["data"], np.float32), numbers)

    run(scenario, FakeEngine(echo(DataType.FP32)))


def test_body_refused_in_a_thread_is_freed_at_once():
    limits = Limits(json_bytes=300_000)
    engine = FakeEngine(simple())
    left: list[int] = []

    def refusals() -> int:
        return sum(isinstance(found, TooLarge) for found in gc.get_objects())

    async def scenario(client: httpx.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        # One thread, so that it has released one piece of work when it does the next: a pool's thread holds on to the error that it has
        # just handed over until it runs again, and on a busy host the answer is here before that.
        loop.set_default_executor(ThreadPoolExecutor(1))
        gc.collect()
        gc.disable()
        try:
            before = refusals()
            for _ in range(2):
                assert (await client.post("/v2/models/simple/infer", content=b" " * 400_000)).status_code == 413
            await loop.run_in_executor(None, int)
            left.append(refusals() - before)
        finally:
            gc.enable()

    run(scenario, engine, limits)
    assert left == [0]
