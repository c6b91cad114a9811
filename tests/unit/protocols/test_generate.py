"""generate and generate_stream: flat JSON to tensors and back, events, and Triton's refusals."""

import asyncio
import json
from collections.abc import Mapping

import httpx
import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed, Overloaded, QueueTimeout
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.protocols.services import Services
from stoker.server.web.http_server import http_server
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo, model, signature, simple


def post(engine: FakeEngine, path: str, body, limits: Limits | None = None, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """The response to one request."""

    async def main() -> httpx.Response:
        front = http_server(Services(engine, limits or Limits()), "127.0.0.1", 0)
        port = await front.start()
        try:
            async with asyncio.timeout(20), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                return await client.post(f"/v2/models/{path}", content=content, headers=headers)
        finally:
            await front.stop(1)

    response = asyncio.run(main())
    assert engine.reserved_bytes == 0
    return response


def events(response: httpx.Response) -> list[dict[str, object]]:
    """The content of each event."""
    *parts, last = response.text.split("\n\n")
    assert last == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def text_model(max_batch_size: int = 0, **options: object) -> FakeModel:
    of = signature(
        [TensorSpec("PROMPT", DataType.BYTES, (1,)), TensorSpec("STREAM", DataType.BOOL, (1,))],
        [TensorSpec("TEXT", DataType.BYTES, (1,))],
        max_batch_size,
    )
    return model("llm", of, lambda inputs: {"TEXT": inputs["PROMPT"]}, **options)


@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_keys_are_inputs_or_parameters_and_a_single_element_is_a_scalar(max_batch_size):
    engine = FakeEngine(text_model(max_batch_size))
    body = {"PROMPT": "hello", "STREAM": False, "mine": 7, "id": "r1", "parameters": {"deep": "x", "priority": 2}}
    response = post(engine, "llm/generate", body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"id": "r1", "model_name": "llm", "model_version": "1", "TEXT": "hello"}
    [request] = engine.requests
    assert request.parameters == {"mine": 7, "deep": "x"}
    assert (request.priority, request.request_id) == (2, "r1")
    assert request.inputs["STREAM"].shape == ((1, 1) if max_batch_size else (1,))


def test_longer_outputs_are_flat_lists():
    row = list(range(16))
    response = post(FakeEngine(simple()), "simple/versions/1/generate", {"INPUT0": row, "INPUT1": row})
    assert response.json()["OUTPUT0"] == [2 * value for value in row]


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "count", "shape"),
    [
        ((-1,), 0, 3, (3,)),
        ((2, -1), 0, 6, (2, 3)),
        ((-1, -1), 0, 6, (1, 6)),
        ((3,), 8, 6, (2, 3)),
        ((-1,), 8, 6, (1, 6)),
        ((2,), 0, 2, (2,)),
    ],
)
def test_flat_list_gets_the_shape_of_its_input(dims, max_batch_size, count, shape):
    engine = FakeEngine(echo(DataType.INT32, dims, max_batch_size, name="e"))
    assert post(engine, "e/generate", {"INPUT": list(range(count))}).status_code == 200
    assert engine.requests[0].inputs["INPUT"].shape == shape


def test_numbers_without_a_json_form_are_printed_like_triton():
    engine = FakeEngine(model("n", signature([TensorSpec("X", DataType.FP32, (1,))], [TensorSpec("Y", DataType.FP32, (-1,))], 0), _special))
    assert b'"Y":NaN}' in post(engine, "n/generate", {"X": 1}).content
    assert b'"Y":[-Infinity,2.0]}' in post(engine, "n/generate", {"X": 2}).content


def _special(inputs):
    return {"Y": np.array([np.nan] if inputs["X"][0] == 1 else [-np.inf, 2], np.float32)}


def test_each_response_is_an_event():
    response = post(FakeEngine(text_model(responses=3)), "llm/generate_stream", {"PROMPT": ["a"], "STREAM": True})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [event["TEXT"] for event in events(response)] == ["a"] * 3


@pytest.mark.parametrize("responses", [0, 2])
def test_generate_requires_exactly_one_response(responses):
    engine = FakeEngine(text_model(responses=responses))
    response = post(engine, "llm/generate", {"PROMPT": "a", "STREAM": True})
    assert response.status_code == 400
    assert "generate expects model to produce exactly 1 response" in response.json()["error"]
    assert post(engine, "llm/generate_stream", {"PROMPT": "a", "STREAM": True}).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (BackendFailed("An Error Occurred"), 500, "An Error Occurred"),
        (Overloaded("Exceeds maximum queue size"), 503, "[request id: <id_unknown>] Exceeds maximum queue size"),
        (QueueTimeout("Request timeout expired"), 503, "Request timeout expired"),
    ],
)
def test_first_response_that_is_an_error_sets_the_status(error, status, text):
    async def fail(request: InferRequest) -> None:
        raise error

    response = post(FakeEngine(text_model(before=fail)), "llm/generate_stream", {"PROMPT": "a", "STREAM": True})
    assert response.status_code == status
    [event] = events(response)
    assert text in str(event["error"])
    response = post(FakeEngine(text_model(before=fail)), "llm/generate", {"PROMPT": "a", "STREAM": True})
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "expected 2 inputs but got 0"),
        ({"PROMPT": "hello"}, "expected 2 inputs but got 1"),
        ({"STREAM": False, "other": "parameter"}, "expected 2 inputs but got 1"),
        ({"PROMPT": 123, "STREAM": False}, "attempt to access JSON non-string as string"),
        ({"PROMPT": "hello", "STREAM": "false"}, "attempt to access JSON non-boolean as boolean"),
        ({"PROMPT": {"USER": "hello"}, "STREAM": True}, "attempt to access JSON non-string as string"),
        (b'{"PROMPT": "a", "STREAM": false, "PROMPT": "b"}', "input 'PROMPT' already exists in request"),
        ({"PROMPT": "a", "STREAM": True, "P": {"a": 0}}, "parameter 'P' has invalid type"),
        ({"PROMPT": "a", "STREAM": True, "parameters": 1}, "Expected JSON object for keyword: 'parameters'"),
        ({"PROMPT": ["a", "b"], "STREAM": True}, "The schema can not convert input 'PROMPT' to tensor with proper shape"),
        ({"PROMPT": "a", "STREAM": True, "triton_x": 1}, "reserved for Triton usage"),
        (b"[]", "must be a JSON object"),
        (b"{", "failed to parse the request JSON buffer"),
    ],
)
def test_unreadable_body_is_refused_in_json_on_both_routes(route, body, text):
    response = post(FakeEngine(text_model()), f"llm/{route}", body)
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json"), response.text
    assert text in response.json()["error"]


def test_compressed_requests_are_refused():
    response = post(FakeEngine(text_model()), "llm/generate", b"x", headers={"content-encoding": "gzip"})
    assert response.status_code == 400
    assert "Unsupported Content-Encoding" in response.json()["error"]


def test_bodies_are_bounded():
    response = post(FakeEngine(text_model()), "llm/generate", {"PROMPT": "a" * 2000, "STREAM": True}, Limits(generate_bytes=1000))
    assert response.status_code == 413
    assert "1000 bytes" in response.json()["error"]


def test_unknown_model_is_a_client_error():
    response = post(FakeEngine(), "none/generate", {})
    assert response.status_code == 400
    assert "unknown model" in response.json()["error"]
