"""Which headers become parameters of a request, over both protocols."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from stoker.server.codecs.memo import CACHE_ENTRIES
from stoker.server.core.flag import FlagError
from stoker.server.core.limits import Limits
from stoker.server.flags.command import read_command
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.extensions import Extensions, HeaderForward, PatternError
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.kserve.methods import kserve_methods
from stoker.server.protocols.services import Services
from stoker.server.protocols.settings import KServeSettings
from stoker.server.web.http_server import http_server
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.message_calls import respond

LIMITS = Limits()
ROW = list(range(16))


@pytest.mark.parametrize(
    ("pattern", "names", "forwarded"),
    [
        ("", ["a"], []),
        (".*", ["a", "x-b"], ["a", "x-b"]),
        ("my", ["my", "my-header", "not-my"], ["my"]),
        ("MY-.*", ["my-header"], ["my-header"]),
        ("(?-i)MY-.*", ["my-header"], []),
        ("(?-i)my-.*", ["my-header"], ["my-header"]),
        ("a|b", ["a", "b", "ab"], ["a", "b"]),
        (".*", ["triton_x", "priority", "sequence_id", "headers", "x" * 300, "fine"], ["fine"]),
    ],
)
def test_pattern_matches_whole_names(pattern: str, names: list[str], forwarded: list[str]):
    forward = HeaderForward(pattern)
    for _ in range(2):
        assert list(forward.parameters((name, "v") for name in names)) == forwarded
    assert forward.is_on is bool(pattern)


@pytest.mark.parametrize("pattern", ["(a", "a(?=b)", "(?<!x)a", r"(a)\1", "(?P<n>a)(?P=n)", "[", "a(?>b)"])
def test_invalid_re2_pattern_is_refused_at_the_start(pattern: str):
    with pytest.raises(PatternError):
        HeaderForward(pattern)
    with pytest.raises(FlagError, match="--grpc-header-forward-pattern="):
        read_command(["--model-base-path=x", f"--grpc-header-forward-pattern={pattern}"], {})


def test_escaped_digits_and_backslashes_are_not_back_references():
    assert list(HeaderForward(r"a\d\\1?").parameters([("a1\\", "v")])) == ["a1\\"]


def test_number_of_cached_header_names_is_bounded():
    forward = HeaderForward("x-.*")
    for number in range(2000):
        assert forward.parameters([(f"x-{number}", "v")])
    assert len(forward.match_by_name) == CACHE_ENTRIES


def extensions() -> Extensions:
    return Extensions(LIMITS, KServeSettings(http_forward_pattern="x-.*", grpc_forward_pattern="x-.*"))


def message() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(bytes(64))
    return request


class FakeCall:
    """A unary call with metadata."""

    deadline_ns = None

    def __init__(self, metadata: dict[str, str]) -> None:
        self.metadata = metadata


def test_metadata_reach_the_model_of_their_own_call_only():
    engine = FakeEngine(simple())
    [infer] = [method for method in kserve_methods(engine, LIMITS, extensions()) if method.path.endswith("/ModelInfer")]
    start: Any = infer.start
    custom = message()
    custom.parameters["x-user"].string_param = "forged"
    custom.parameters["mine"].int64_param = 1

    async def scenario() -> None:
        for data, metadata in (
            (message(), {"x-user": "one", "y": "no"}),
            (message(), {"x-user": "two"}),
            (message(), {}),
            (custom, {"x-user": "real"}),
        ):
            await start(data.SerializeToString(), FakeCall(metadata)).outcome()

    asyncio.run(scenario())
    assert [dict(request.parameters) for request in engine.requests] == [
        {"x-user": "one"},
        {"x-user": "two"},
        {},
        {"x-user": "real", "mine": 1},
    ]


def test_metadata_reach_the_model_on_the_path_without_a_task():
    engine = FakeEngine(simple())
    [infer] = [method for method in kserve_methods(engine, LIMITS, extensions()) if method.path.endswith("/ModelInfer")]
    start: Any = infer.start

    async def scenario() -> None:
        for user in ("one", "two"):
            answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            start(message().SerializeToString(), FakeCall({"x-user": user})).then(answered.set_result)
            await answered

    asyncio.run(scenario())
    assert [dict(request.parameters) for request in engine.requests] == [{"x-user": "one"}, {"x-user": "two"}]


def test_server_without_a_pattern_forwards_nothing():
    engine = FakeEngine(simple())
    asyncio.run(respond(Inference(engine, LIMITS), message().SerializeToString()))
    assert engine.requests[0].parameters == {}


def test_headers_reach_the_model_on_every_path():
    engine = FakeEngine(simple())
    tensors = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": ROW} for name in ("INPUT0", "INPUT1")]
    binary = [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 64}} for name in ("INPUT0", "INPUT1")
    ]
    head = orjson.dumps({"inputs": binary, "parameters": {"binary_data_output": True, "mine": 1}})
    length = {"inference-header-content-length": str(len(head))}

    async def main() -> None:
        front = http_server(Services(engine, LIMITS, extensions=extensions()), "127.0.0.1", 0)
        port = await front.start()
        try:
            async with asyncio.timeout(20), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                for user in ("one", "two"):
                    await client.post("/v2/models/simple/infer", json={"inputs": tensors}, headers={"X-User": user, "Y": "no"})
                # An unusual spelling comes through the framework, the repeated JSON part from memory.
                await client.post("/v2/models/simple/%69nfer", json={"inputs": tensors}, headers={"x-user": "three"})
                for user in ("four", "five"):
                    await client.post("/v2/models/simple/infer", content=head + bytes(128), headers={**length, "x-user": user})
                await client.post("/v2/models/simple/infer", content=head + bytes(128), headers=length)
        finally:
            await front.stop(1)

    asyncio.run(main())
    assert [dict(request.parameters) for request in engine.requests] == [
        {"x-user": "one"},
        {"x-user": "two"},
        {"x-user": "three"},
        {"mine": 1, "x-user": "four"},
        {"mine": 1, "x-user": "five"},
        {"mine": 1},
    ]
