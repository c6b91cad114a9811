"""OpenAI's routes over HTTP on a fake engine: bodies to requests, responses to objects and events, errors in OpenAI's form."""

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed, Overloaded, QueueTimeout, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.openai.service import OpenAiService
from stoker.server.protocols.services import Services
from stoker.server.protocols.settings import KServeSettings
from stoker.server.rpc.restricted import Category, Key
from stoker.server.web.http_server import http_server
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.openai_models import ScriptedEngine, declared, embedder, writer

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
PROMPT = {"model": "m", "prompt": "Once"}


def send(engine: FakeEngine, path: str, body: Any) -> httpx.Response:
    """The response of the service itself to a POST."""
    service = OpenAiService(engine, Limits())
    handlers = {"/v1/embeddings": service.embeddings, "/v1/completions": service.completions, "/v1/chat/completions": service.chat}

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(handlers[path])
        async with asyncio.timeout(60), httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())

    response = asyncio.run(main())
    assert engine.reserved_bytes == 0
    return response


def request_all(
    engine: FakeEngine, *requests: tuple[str, str, Any], extensions: Extensions | None = None, **headers: str
) -> list[httpx.Response]:
    """The responses of a whole HTTP port to (method, path, body)."""

    async def main() -> list[httpx.Response]:
        front = http_server(Services(engine, Limits(), extensions=extensions), "127.0.0.1", 0)
        port = await front.start()
        try:
            async with asyncio.timeout(60), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None) as client:
                fields = {name.replace("_", "-"): value for name, value in headers.items()}
                return [await client.request(method, path, json=body, headers=fields) for method, path, body in requests]
        finally:
            await front.stop(1)

    responses = asyncio.run(main())
    assert engine.reserved_bytes == 0
    return responses


def events(response: httpx.Response) -> list[Any]:
    """The events of a stream; the text of one that is no JSON."""
    *parts, last = response.text.split("\n\n")
    assert last == ""
    texts = [part.removeprefix("data: ") for part in parts]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    return error


def scripted(*responses: Any, model: Any = None, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(model or writer(), script=lambda _: responses, **options)


# Embeddings


def test_texts_share_one_request_and_vectors_keep_their_order() -> None:
    engine = FakeEngine(embedder(counts=True))
    response = send(engine, "/v1/embeddings", {"model": "e", "input": ["one", "three"], "user": "u"})
    assert response.status_code == 200, response.text
    assert response.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [3.0, 0.5]},
            {"object": "embedding", "index": 1, "embedding": [5.0, 0.5]},
        ],
        "model": "e",
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
    }
    [request] = engine.requests
    assert (request.rows, request.inputs["text"].tolist(), request.via) == (2, [[b"one"], [b"three"]], Via.OPENAI)
    assert request.request_id == response.headers["x-request-id"]


def test_more_texts_than_a_batch_are_several_requests() -> None:
    engine = FakeEngine(embedder(max_batch_size=2))
    data = send(engine, "/v1/embeddings", {"model": "e", "input": ["a" * n for n in range(1, 6)]}).json()["data"]
    assert [each["embedding"][0] for each in data] == [1, 2, 3, 4, 5]
    assert [request.rows for request in engine.requests] == [2, 2, 1]


def test_model_without_batch_dimension_gets_all_texts_in_one_vector() -> None:
    engine = FakeEngine(embedder(max_batch_size=0))
    data = send(engine, "/v1/embeddings", {"model": "e", "input": ["a", "bb"]}).json()["data"]
    assert [each["embedding"][0] for each in data] == [1, 2]
    assert engine.requests[0].inputs["text"].shape == (2,)


def test_base64_is_little_endian_fp32() -> None:
    response = send(FakeEngine(embedder()), "/v1/embeddings", {"model": "e", "input": "abc", "encoding_format": "base64"})
    [each] = response.json()["data"]
    assert np.frombuffer(base64.b64decode(each["embedding"]), "<f4").tolist() == [3.0, 0.5]


def test_token_numbers_are_rejected_unless_the_model_takes_them() -> None:
    response = send(FakeEngine(embedder()), "/v1/embeddings", {"model": "e", "input": [1, 2]})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["type"]) == ("input", "invalid_request_error")
    assert error["message"] == "this model takes texts in 'input', not token numbers: send the text itself"
    engine = FakeEngine(embedder(tokens=True))
    data = send(engine, "/v1/embeddings", {"model": "e", "input": [[1, 2], [4]]}).json()["data"]
    assert [each["embedding"][0] for each in data] == [3, 4]


# Completions


def test_responses_of_a_decoupled_model_are_one_text() -> None:
    engine = scripted({"text": "a"}, {"text": b"b\xc3"}, {"text": b"\xa9"})
    printed = send(engine, "/v1/completions", {**PROMPT, "echo": True}).json()
    assert printed["object"] == "text_completion"
    assert printed["choices"] == [{"index": 0, "text": "Onceabé", "logprobs": None, "finish_reason": "stop"}]
    assert printed["id"].startswith("cmpl-")
    assert engine.requests[0].inputs["prompt"].tolist() == [b"Once"]


def test_prompts_and_choices_are_numbered_and_each_is_a_request() -> None:
    def script(request: Any) -> list[dict[str, Any]]:
        return [{"text": request.inputs["prompt"][0].decode() + str(request.parameters.get("seed"))}]

    engine = ScriptedEngine(writer(), script=script)
    choices = send(engine, "/v1/completions", {"model": "m", "prompt": ["p", "q"], "n": 2, "seed": 7}).json()["choices"]
    assert sorted((choice["index"], choice["text"]) for choice in choices) == [(0, "p7"), (1, "p8"), (2, "q7"), (3, "q8")]


def test_prompts_of_a_batched_model_share_a_request() -> None:
    model = writer(max_batch_size=4, is_decoupled=False, outputs=["completion_tokens", "prompt_tokens"])
    engine = ScriptedEngine(
        model, script=lambda r: [{"text": ["x"] * r.rows, "completion_tokens": [2] * r.rows, "prompt_tokens": [3] * r.rows}]
    )
    printed = send(engine, "/v1/completions", {"model": "m", "prompt": ["a", "b"], "n": 3}).json()
    assert [request.rows for request in engine.requests] == [4, 2]
    assert [choice["text"] for choice in printed["choices"]] == ["x"] * 6
    # A prompt counts once, whatever the number of its choices.
    assert printed["usage"] == {"prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18}


def test_options_are_inputs_or_parameters() -> None:
    inputs = [
        TensorSpec("max_tokens", DataType.INT32, (1,), optional=True),
        TensorSpec("temperature", DataType.FP32, (1,), optional=True),
        TensorSpec("stop", DataType.BYTES, (-1,), optional=True),
        TensorSpec("logit_bias", DataType.BYTES, (1,), optional=True),
    ]
    engine = scripted({"text": "x"}, model=writer(inputs=inputs, max_batch_size=2))
    body = {
        **PROMPT,
        "max_tokens": 5,
        "temperature": 0,
        "stop": ["a", "b"],
        "logit_bias": {"5": 1},
        "top_k": 40,
        "priority": 3,
        "user": "u",
    }
    assert send(engine, "/v1/completions", body).status_code == 200
    [request] = engine.requests
    found = {name: array.tolist() for name, array in request.inputs.items()}
    assert found == {
        "prompt": [[b"Once"]],
        "max_tokens": [[5]],
        "temperature": [[0.0]],
        "stop": [[b"a", b"b"]],
        "logit_bias": [[b'{"5":1}']],
    }
    assert (request.parameters, request.priority) == ({"top_k": 40}, 3)


def test_fields_that_ask_for_text_need_no_input() -> None:
    engine = scripted({"text": "x"})
    body = {
        **CHAT,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "tools": [],
        "logit_bias": {},
        "logprobs": False,
        "store": False,
    }
    assert send(engine, "/v1/chat/completions", body).status_code == 200
    assert engine.requests[0].parameters == {}


def test_stop_sequence_across_responses_ends_the_text_and_the_request() -> None:
    engine = scripted({"text": "one E"}, {"text": "N"}, {"text": "D two"}, {"text": "never"}, holds=True)
    printed = send(engine, "/v1/completions", {**PROMPT, "stop": ["END", "zzz"]}).json()
    assert [(choice["text"], choice["finish_reason"]) for choice in printed["choices"]] == [("one ", "stop")]
    assert engine.left == engine.requests


# Chat


def test_messages_reach_the_model_as_json() -> None:
    engine = scripted({"text": "Hi"}, {"text": " there", "finish_reason": "length"}, model=writer(outputs=["finish_reason"]))
    printed = send(engine, "/v1/chat/completions", {**CHAT, "max_completion_tokens": 2}).json()
    assert printed["object"] == "chat.completion"
    assert printed["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi there", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    [request] = engine.requests
    assert json.loads(request.inputs["messages"][0]) == CHAT["messages"]
    assert request.parameters == {"max_tokens": 2}


def test_stream_has_role_pieces_reason_usage_and_end() -> None:
    model = writer(outputs=["prompt_tokens", "completion_tokens"])
    engine = scripted({"text": "a", "prompt_tokens": 4, "completion_tokens": 1}, {"text": "b", "completion_tokens": 2}, model=model)
    response = send(engine, "/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 2, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, end = events(response)
    assert end == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    *texts, last = chunks
    assert [choice["delta"] for chunk in texts for choice in chunk["choices"]] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in texts] == [None, None, None, "length"]
    assert {chunk["usage"] for chunk in texts} == {None}
    assert (last["choices"], last["usage"]) == ([], {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6})


def test_stream_without_usage_has_no_such_key() -> None:
    *chunks, _ = events(send(scripted({"text": "a"}), "/v1/completions", {**PROMPT, "stream": True}))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", ""]
    assert all("usage" not in chunk for chunk in chunks)


def test_parts_of_tool_calls_are_sent_and_merged() -> None:
    parts = [
        [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a"'}}],
        [{"function": {"arguments": ":1}"}}],
    ]
    model = writer(outputs=["tool_calls"], inputs=[TensorSpec("tools", DataType.BYTES, (1,), optional=True)])
    body = {**CHAT, "tools": [{"type": "function", "function": {"name": "look"}}]}
    script = [{"text": "", "tool_calls": json.dumps(part)} for part in parts]
    [choice] = send(scripted(*script, model=model), "/v1/chat/completions", body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}],
    }
    chunks = events(send(scripted(*script, model=model), "/v1/chat/completions", {**body, "stream": True}))
    deltas = [choice["delta"].get("tool_calls") for chunk in chunks[:-1] for choice in chunk["choices"]]
    assert [delta[0]["index"] for delta in deltas if delta] == [0, 0]


def test_broken_tool_calls_are_the_models_failure() -> None:
    response = send(scripted({"text": "", "tool_calls": "{"}, model=writer(outputs=["tool_calls"])), "/v1/chat/completions", CHAT)
    assert (response.status_code, error_of(response)["type"]) == (500, "server_error")


# Failures


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (Overloaded("full", retry_after_s=2.5), 429, "rate_limit_error", "rate_limit_exceeded"),
        (QueueTimeout("late"), 503, "server_error", "timeout"),
        (Unavailable("loading"), 503, "server_error", "model_unavailable"),
        (BackendFailed("broken"), 500, "server_error", None),
    ],
)
def test_failure_before_the_first_response_has_a_status(
    error: Exception, status: int, kind: str, code: str | None, is_stream: bool
) -> None:
    engine = scripted(error)
    response = send(engine, "/v1/chat/completions", {**CHAT, "stream": is_stream})
    assert response.status_code == status
    assert error_of(response) == {"message": str(error), "type": kind, "param": None, "code": code}
    assert engine.failures == [(Via.OPENAI, type(error))]
    if status == 429:
        assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("3", "2500")


def test_failure_after_the_first_response_is_the_last_event() -> None:
    response = send(scripted({"text": "a"}, BackendFailed("broken")), "/v1/completions", {**PROMPT, "stream": True})
    assert response.status_code == 200
    first, last = events(response)
    assert first["choices"][0]["text"] == "a"
    assert last["error"]["message"] == "broken"


def test_failure_of_one_choice_cancels_the_others() -> None:
    def script(request: Any) -> list[Any]:
        return [{"text": "a"}] if request.inputs["prompt"][0] == b"good" else [BackendFailed("broken")]

    engine = ScriptedEngine(writer(), script=script, holds=True)
    response = send(engine, "/v1/completions", {"model": "m", "prompt": ["good", "bad"]})
    assert response.status_code == 500
    assert [request.inputs["prompt"][0] for request in engine.left] == [b"good"]


def test_disconnect_of_the_client_leaves_the_streams_of_all_choices() -> None:
    engine = scripted({"text": "a"}, holds=True)

    async def main() -> None:
        front = http_server(Services(engine, Limits()), "127.0.0.1", 0)
        port = await front.start()
        try:
            async with asyncio.timeout(60):
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None) as client:
                    body = {**CHAT, "stream": True, "n": 2}
                    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                        async for line in response.aiter_lines():
                            if '"a"' in line:
                                break
                while len(engine.left) < 2:
                    engine.cancellation.clear()
                    await engine.cancellation.wait()
        finally:
            await front.stop(1)

    asyncio.run(main())
    assert len(engine.left) == 2
    assert engine.reserved_bytes == 0


@pytest.mark.parametrize(
    ("path", "body", "param", "text"),
    [
        ("chat/completions", {"model": "m"}, "messages", "must be a list of at least one message"),
        ("chat/completions", {**CHAT, "messages": [{"content": "x"}]}, "messages[0].role", "must be a text"),
        ("chat/completions", {**CHAT, "messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a text, or a list of parts"),
        ("chat/completions", {"messages": CHAT["messages"]}, "model", "you must provide a 'model'"),
        ("chat/completions", {**CHAT, "temperature": "hot"}, "temperature", 'takes a number from 0 to 100, not "hot"'),
        ("chat/completions", {**CHAT, "n": 0}, "n", "takes a whole number from 1 to 128"),
        ("chat/completions", {**CHAT, "max_tokens": 0}, "max_tokens", "takes a whole number from 1"),
        ("chat/completions", {**CHAT, "stop": [""]}, "stop", "none of them empty"),
        ("chat/completions", {**CHAT, "stream": "yes"}, "stream", "must be a boolean"),
        ("chat/completions", {**CHAT, "stream_options": {"include_usage": True}}, "stream_options", "only allowed with 'stream': true"),
        ("chat/completions", {**CHAT, "logprobs": True}, "logprobs", "not supported"),
        ("chat/completions", {**CHAT, "tools": [{}]}, "tools", "model 'm' takes no 'tools'"),
        ("completions", {"model": "m"}, "prompt", "you must provide 'prompt'"),
        ("completions", {**PROMPT, "prompt": [1, "x"]}, "prompt", "must be a text, a list of texts"),
        ("completions", {**PROMPT, "prompt": ["x"] * 100, "n": 2}, "n", "more than the 128 choices"),
        ("completions", {**PROMPT, "prompt": [1, 2]}, "prompt", "takes texts in 'prompt', not token numbers"),
        ("chat/completions", {**CHAT, "response_format": {"type": "json_object"}}, "response_format", "takes no 'response_format'"),
        ("embeddings", {"model": "e", "input": "x", "dimensions": 2}, "dimensions", "model 'e' takes no 'dimensions'"),
        ("embeddings", {"model": "e", "input": []}, "input", "and not empty"),
        ("embeddings", {"model": "e", "input": ["x"] * 3000}, "input", "3000 entries, more than the 2048 allowed"),
        ("embeddings", {"model": "e", "input": "x", "encoding_format": "hex"}, "encoding_format", "takes 'float' or 'base64'"),
    ],
)
def test_bad_field_is_named(path: str, body: dict[str, Any], param: str, text: str) -> None:
    engine = ScriptedEngine(writer(), embedder(), script=lambda _: [{"text": "x"}])
    response = send(engine, f"/v1/{path}", body)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert text in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"model": "m", "model": "m"}', b"\xff"])
def test_body_that_is_no_object_is_rejected(body: bytes) -> None:
    response = send(scripted(), "/v1/completions", body)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


def test_unknown_model_and_missing_declaration_name_the_models_of_the_endpoint() -> None:
    engine = FakeEngine(writer(), embedder(), simple())
    for name, reason in (
        ("nope", "the model 'nope' does not exist"),
        ("e", "it declares embeddings"),
        ("simple", "its config.pbtxt has no parameter 'openai'"),
    ):
        response = send(engine, "/v1/chat/completions", {**CHAT, "model": name})
        error = error_of(response)
        assert (response.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
        assert reason in error["message"]
        assert error["message"].endswith("models for /v1/chat/completions: m")


# Models


def test_list_has_the_models_that_declare_an_endpoint() -> None:
    [response] = request_all(FakeEngine(simple(), writer(), embedder()), ("GET", "/v1/models", None))
    assert response.json()["object"] == "list"
    assert [(each["id"], each["object"], each["endpoints"]) for each in response.json()["data"]] == [
        ("e", "model", ["embeddings"]),
        ("m", "model", ["chat", "completions"]),
    ]


def test_model_has_the_keys_of_both_protocols_if_it_declares_an_endpoint() -> None:
    paths = ("/v1/models/m", "/v1/models/simple", "/v1/models/m/versions/1")
    both, only, version = (each.json() for each in request_all(FakeEngine(simple(), writer()), *(("GET", path, None) for path in paths)))
    assert (both["id"], both["object"], both["owned_by"]) == ("m", "model", "stoker")
    assert both["model_version_status"][0]["state"] == "AVAILABLE"
    assert list(only) == list(version) == ["model_version_status"]


@pytest.mark.slow
def test_other_paths_of_openai_name_those_that_are_served() -> None:
    cases = {
        ("GET", "/v1/embeddings"): 405,
        ("POST", "/v1/models"): 405,
        ("POST", "/v1/responses"): 404,
        ("GET", "/v1/files"): 404,
        ("POST", "/v1/images/generations"): 404,
    }
    responses = request_all(FakeEngine(simple()), *((method, path, None) for method, path in cases))
    assert [response.status_code for response in responses] == list(cases.values())
    served = "served are POST /v1/embeddings, POST /v1/completions, POST /v1/chat/completions and GET /v1/models"
    assert all(served in error_of(response)["message"] for response in responses)


@pytest.mark.slow
def test_restricted_inference_needs_its_key() -> None:
    extensions = Extensions(Limits(), KServeSettings(http_restricted={Category.INFERENCE: Key("infer-key", "secret")}))
    engine = scripted({"text": "a"})
    requests = [("POST", "/v1/chat/completions", CHAT), ("POST", "/v1/completions", PROMPT), ("POST", "/v1/embeddings", PROMPT)]
    for response in request_all(engine, *requests, extensions=extensions):
        assert (response.status_code, error_of(response)["type"]) == (403, "permission_error")
    assert engine.requests == []
    [response] = request_all(engine, requests[0], extensions=extensions, infer_key="secret")
    assert response.status_code == 200


@pytest.mark.slow
def test_api_key_is_openais_own() -> None:
    extensions = Extensions(Limits(), api_key="sk-1")
    engine = scripted({"text": "a"})
    [response] = request_all(engine, ("POST", "/v1/completions", PROMPT), extensions=extensions)
    assert (response.status_code, error_of(response)["code"]) == (401, "invalid_api_key")
    [response] = request_all(engine, ("POST", "/v1/completions", PROMPT), extensions=extensions, authorization="Bearer sk-1")
    assert response.status_code == 200


def test_headers_that_the_operator_forwards_are_parameters() -> None:
    engine = scripted({"text": "a"})
    extensions = Extensions(Limits(), KServeSettings(http_forward_pattern="x-group"))
    request_all(engine, ("POST", "/v1/completions", PROMPT), extensions=extensions, x_group="blue")
    assert engine.requests[0].parameters == {"x-group": "blue"}


@pytest.mark.slow
def test_routes_are_in_the_openapi_document() -> None:
    [response] = request_all(FakeEngine(), ("GET", "/openapi.json", None))
    document = response.json()
    assert {"/v1/embeddings", "/v1/completions", "/v1/chat/completions", "/v1/models"} <= document["paths"].keys()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "messages", "stream", "stop"} <= body["properties"].keys()


def test_more_than_one_response_is_no_embedding() -> None:
    of = ModelSignature((TensorSpec("text", DataType.BYTES, (1,)),), (TensorSpec("embedding", DataType.FP32, (-1, 2)),), 0, True)
    engine = ScriptedEngine(declared(of, "embeddings"), script=lambda _: [{"embedding": [1, 2]}, {"embedding": [1, 2]}])
    response = send(engine, "/v1/embeddings", {"model": "m", "input": "x"})
    assert response.status_code == 400
    assert "more than one response" in error_of(response)["message"]
