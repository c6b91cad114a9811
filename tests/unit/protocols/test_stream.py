"""ModelStreamInfer without a transport: a call that is two queues."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import pytest
from google.protobuf.message import Message

from stoker.backends.api.errors import NotFound, Overloaded, ServingError
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import Serialised, whole
from stoker.server.core.byte_budget import ByteBudget
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest, InferResponse
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.kserve.stream import StreamInference
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo, simple


class FakeStreamCall:
    """A stream whose two ends are controlled by the test."""

    def __init__(self, metadata: Mapping[str, str] | None = None) -> None:
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.responses: asyncio.Queue[pb.ModelStreamInferResponse] = asyncio.Queue()
        self.metadata = metadata or {}
        self.binary_metadata: Mapping[str, bytes] = {}
        self.deadline_ns: int | None = None
        self.taken = 0
        self.reads = asyncio.Event()
        self.reads.set()

    def cancelled(self) -> bool:
        return False

    async def receive(self) -> bytes | None:
        data = await self.requests.get()
        self.taken += 1
        return data

    def add_trailer(self, name: str, value: str | bytes) -> None:
        raise NotImplementedError

    async def send(self, message: Message | Serialised) -> None:
        await self.reads.wait()
        assert not isinstance(message, Message)
        self.responses.put_nowait(pb.ModelStreamInferResponse.FromString(whole(message)))

    def ask(self, request_id: str, *, model: str = "simple", empty_final: bool = False) -> None:
        message = pb.ModelInferRequest(model_name=model, id=request_id)
        for name in ("INPUT0", "INPUT1"):
            message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
            message.raw_input_contents.append(bytes(64))
        if empty_final:
            message.parameters["triton_enable_empty_final_response"].bool_param = True
        self.requests.put_nowait(message.SerializeToString())

    def end(self) -> None:
        self.requests.put_nowait(None)

    def sent(self) -> list[pb.ModelStreamInferResponse]:
        return [self.responses.get_nowait() for _ in range(self.responses.qsize())]


def run(
    scenario: Callable[[FakeStreamCall, asyncio.Task[None]], Awaitable[None]],
    engine: FakeEngine,
    limits: Limits | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    async def main() -> None:
        call = FakeStreamCall(metadata)
        bounds = limits or Limits()
        streams = StreamInference(engine, Inference(engine, bounds), bounds)
        async with asyncio.timeout(10):
            stream = asyncio.create_task(streams.model_stream_infer(call))
            await scenario(call, stream)
            assert stream.done()

    asyncio.run(main())
    assert engine.reserved_bytes == 0


def decoupled(responses: int, name: str = "simple") -> FakeModel:
    """A model as `simple`, with `responses` to each request."""
    fake = simple()
    fake.responses = responses
    signature = dataclasses.replace(fake.config.signature, is_decoupled=True)
    fake.config = dataclasses.replace(fake.config, name=name, signature=signature)
    return fake


def final(message: pb.ModelStreamInferResponse) -> bool:
    return message.infer_response.parameters["triton_final_response"].bool_param


def test_responses_keep_the_order_of_concurrent_requests():
    fake = simple()
    gates = {str(i): asyncio.Event() for i in range(3)}

    async def wait(request: InferRequest) -> None:
        await gates[request.request_id].wait()

    fake.before = wait
    engine = FakeEngine(fake)

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        for i in range(3):
            call.ask(str(i))
        call.end()
        while len(engine.requests) < 3:  # noqa: ASYNC110 - turns the loop, waits for nothing else
            await asyncio.sleep(0)
        for i in (2, 1):
            gates[str(i)].set()
            await asyncio.sleep(0)
        assert call.responses.empty()
        gates["0"].set()
        await stream
        sent = call.sent()
        assert [message.infer_response.id for message in sent] == ["0", "1", "2"]
        assert all(final(message) for message in sent)

    run(scenario, engine)


def test_error_of_a_failing_request_keeps_its_order_and_the_stream_continues():
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("0")
        call.ask("1", model="nope")
        call.requests.put_nowait(b"\xff\xff")
        call.ask("3")
        call.end()
        await stream
        texts = [message.error_message for message in call.sent()]
        assert texts == [
            "",
            "Request for unknown model: 'nope' is not found",
            "the request is not a valid ModelInferRequest message",
            "",
        ]

    run(scenario, FakeEngine(simple()))


def test_client_may_request_a_real_status_instead():
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("0")
        call.ask("1", model="nope")
        call.ask("2")
        with pytest.raises(NotFound):
            await stream
        assert [message.infer_response.id for message in call.sent()] == ["0"]

    run(scenario, FakeEngine(simple()), metadata={"triton_grpc_error": "true"})


@pytest.mark.parametrize("empty_final", [True, False])
def test_single_response_is_final_without_a_marker_after_it(empty_final: bool):
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("0", empty_final=empty_final)
        call.end()
        await stream
        assert [final(message) for message in call.sent()] == [True]

    run(scenario, FakeEngine(simple()))


def test_request_without_responses_is_marked_final_only_on_request():
    fake = decoupled(responses=0)

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("0")
        call.ask("1", empty_final=True)
        call.end()
        await stream
        (marker,) = call.sent()
        assert (marker.infer_response.id, final(marker), len(marker.infer_response.outputs)) == ("1", True, 0)

    run(scenario, FakeEngine(fake))


def test_all_responses_of_a_request_are_sent_and_the_last_is_final():
    fake = decoupled(responses=3)

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("0", empty_final=True)
        call.end()
        await stream
        assert [final(message) for message in call.sent()] == [False, False, True]

    run(scenario, FakeEngine(fake))


def test_requests_in_work_are_bounded_and_reading_pauses():
    fake = simple()
    gate = asyncio.Event()

    async def wait(request: InferRequest) -> None:
        await gate.wait()

    fake.before = wait
    engine = FakeEngine(fake)

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        for i in range(10):
            call.ask(str(i))
        call.end()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(engine.requests) == 2
        assert call.taken == 2
        gate.set()
        await stream
        assert len(call.sent()) == 10

    run(scenario, engine, Limits(stream_requests=2))


def test_byte_budget_applies_to_streams_too():
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("0")
        call.end()
        await stream
        assert "as many request bytes as it may" in call.sent()[0].error_message

    run(scenario, FakeEngine(simple(), budget_bytes=10))


def test_unread_responses_count_against_the_budget():
    engine = FakeEngine(simple(), budget_bytes=1000)

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.reads.clear()
        for i in range(10):
            call.ask(str(i))
            while call.taken <= i:  # noqa: ASYNC110 - the call has no event for it
                await asyncio.sleep(0)
            for _ in range(20):  # the response, or the rejection of the request
                await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert 500 < engine.reserved_bytes <= 1000
        call.end()
        call.reads.set()
        await stream
        responses = call.sent()
        assert len(responses) == 10
        errors = [message.error_message for message in responses if message.error_message]
        assert len(errors) in range(1, 10)
        assert all("no room for" in text for text in errors)

    run(scenario, engine)


def test_unread_responses_of_a_stream_hold_no_more_than_one_request_may():
    engine = FakeEngine(simple())
    engine.budget = ByteBudget(1 << 30, engine.now_ns, most_request_bytes=1000)

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.reads.clear()
        for i in range(10):
            call.ask(str(i))
        call.end()
        for _ in range(100):
            await asyncio.sleep(0)
        assert 500 < engine.reserved_bytes <= 1000
        call.reads.set()
        await stream
        texts = [message.error_message for message in call.sent()]
        assert len(texts) == 10
        assert "more than the 1000 that one request may take" in texts[-1]

    run(scenario, engine)


def test_unsent_responses_are_released_with_the_stream():
    engine = FakeEngine(simple())

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.reads.clear()
        for i in range(3):
            call.ask(str(i))
        while engine.reserved_bytes == 0 or len(engine.requests) < 3:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert engine.reserved_bytes > 0
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream

    run(scenario, engine)


@pytest.mark.parametrize("error", [Overloaded("Exceeds maximum queue size"), ValueError("secret")])
def test_failures_of_the_engine_are_reported(error: Exception, caplog: pytest.LogCaptureFixture):
    fake = simple()

    async def fail(request: InferRequest) -> None:
        raise error

    fake.before = fail

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("7")
        call.end()
        await stream
        text = call.sent()[0].error_message
        if isinstance(error, ServingError):
            assert text == "[request id: 7] Exceeds maximum queue size"
        else:
            assert text == "internal error: see the server's log"
            assert "secret" in caplog.text

    run(scenario, FakeEngine(fake))


def _asked(request_id: str, **fields: object) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(**{"model_name": "simple", "id": request_id, **fields})  # type: ignore[arg-type]
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(bytes(64))
    return message


def _wrong(kind: str) -> bytes:
    """A request of id `wrong` that is refused while it is decoded."""
    message = _asked("wrong")
    if kind == "unknown model":
        message.model_name = "nope"
    elif kind in ("unknown version", "no version"):
        message.model_version = "9" if kind == "unknown version" else "x"
    elif kind == "datatype":
        message.inputs[0].datatype = "FP32"
    elif kind == "name":
        message.inputs[0].name = "OTHER"
    elif kind == "shape":
        message.inputs[0].shape[:] = [1, 15]
    elif kind == "contents":
        message.raw_input_contents[0] = bytes(63)
    elif kind == "large":
        message.raw_input_contents[0] = bytes(100_000)
    elif kind == "parameter":
        message.parameters["priority"].string_param = "x"
    elif kind == "not a message":
        return message.SerializeToString() + b"\xff"
    elif kind == "not UTF-8":
        return message.SerializeToString().replace(b"simple", b"simp\xff\xff")
    return message.SerializeToString()


@pytest.mark.parametrize(
    "kind",
    [
        "unknown model",
        "unknown version",
        "no version",
        "datatype",
        "name",
        "shape",
        "contents",
        "large",
        "parameter",
        "not a message",
        "not UTF-8",
    ],
)
def test_error_of_each_refused_request_has_its_id(kind: str):
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("before")
        call.requests.put_nowait(_wrong(kind))
        call.ask("after")
        call.end()
        await stream
        responses = call.sent()
        assert [message.infer_response.id for message in responses] == ["before", "wrong", "after"]
        assert [bool(message.error_message) for message in responses] == [False, True, False]

    run(scenario, FakeEngine(simple()))


def test_error_of_a_request_above_the_budget_has_its_id():
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("7")
        call.end()
        await stream
        assert [message.infer_response.id for message in call.sent()] == ["7"]

    run(scenario, FakeEngine(simple(), budget_bytes=10))


@pytest.mark.parametrize(
    "request_id",
    [pytest.param("x" * 1025, id="too long"), pytest.param("\N{GRINNING FACE}" * 1025, id="too long, of four bytes each")],
)
def test_invalid_id_is_not_repeated(request_id: str):
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.requests.put_nowait(_asked(request_id).SerializeToString())
        call.requests.put_nowait(_asked("x" * 1024, model_name="nope").SerializeToString())
        call.requests.put_nowait(b"\x1a\x7fabc")
        call.end()
        await stream
        assert [message.infer_response.id for message in call.sent()] == ["", "x" * 1024, ""]

    run(scenario, FakeEngine(simple()))


def _run_known(
    scenario: Callable[[FakeStreamCall, asyncio.Task[None]], Awaitable[None]], engine: FakeEngine, limits: Limits | None = None
) -> None:
    """As `run`, on a server that knows the structure of the requests."""

    async def main() -> None:
        bounds = limits or Limits()
        streams = StreamInference(engine, Inference(engine, bounds), bounds)
        async with asyncio.timeout(10):
            for each in (_ask_one, scenario):
                call = FakeStreamCall()
                await each(call, asyncio.create_task(streams.model_stream_infer(call)))
                engine.requests.clear()

    asyncio.run(main())
    assert engine.reserved_bytes == 0


async def _ask_one(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
    call.ask("first")
    call.end()
    await stream


def test_request_of_a_known_structure_gets_the_same_message_as_the_first():
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        for request_id in ("1", "first", ""):
            call.ask(request_id)
        call.end()
        await stream
        known = call.sent()
        assert [message.infer_response.id for message in known] == ["1", "first", ""]
        new = FakeStreamCall()
        bounds = Limits()
        engine = FakeEngine(simple())
        await _ask_one(new, asyncio.create_task(StreamInference(engine, Inference(engine, bounds), bounds).model_stream_infer(new)))
        assert known[1] == new.sent()[0]

    _run_known(scenario, FakeEngine(simple()))


@pytest.mark.parametrize("error", [Overloaded("full"), ValueError("secret")])
def test_failed_request_of_a_known_structure_keeps_its_order(error: Exception):
    fake = simple()

    async def fail(request: InferRequest) -> None:
        if request.request_id == "7":
            raise error

    fake.before = fail

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        for request_id in ("1", "7", "2"):
            call.ask(request_id)
        call.end()
        await stream
        sent = call.sent()
        assert [message.infer_response.id for message in sent] == ["1", "7", "2"]
        assert sent[1].error_message == (
            "[request id: 7] full" if isinstance(error, ServingError) else "internal error: see the server's log"
        )
        assert final(sent[2])

    _run_known(scenario, FakeEngine(fake))


def test_large_response_to_a_known_structure_is_encoded_in_a_thread():
    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("1")
        call.ask("2")
        call.end()
        await stream
        assert [(message.infer_response.id, final(message)) for message in call.sent()] == [("1", True), ("2", True)]

    _run_known(scenario, FakeEngine(simple()), Limits(decode_inline_bytes=10))


@pytest.mark.parametrize("start", [run, _run_known], ids=["new structure", "known structure"])
def test_cancelled_stream_cancels_its_requests_and_releases_their_bytes(start: Callable[..., None]):
    fake = simple()

    async def wait(request: InferRequest) -> None:
        if request.request_id != "first":
            await asyncio.Event().wait()

    fake.before = wait
    engine = FakeEngine(fake)

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("0")
        call.ask("1")
        while len(engine.requests) < 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        assert engine.reserved_bytes
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        assert not engine.reserved_bytes
        while len(engine.cancelled) < 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)

    start(scenario, engine)


def _echoed(request_id: str, elements: int) -> bytes:
    message = pb.ModelInferRequest(model_name="echo", id=request_id, raw_input_contents=[bytes(4 * elements)])
    message.inputs.add(name="INPUT", datatype="FP32", shape=[1, elements])
    return message.SerializeToString()


def test_requests_that_need_a_thread_keep_the_order_of_the_others():
    large = echo(DataType.FP32, name="echo")

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.ask("0")
        call.requests.put_nowait(_echoed("1", 100_000))
        call.ask("2")
        call.requests.put_nowait(_echoed("3", 200_000)[:-1])
        call.requests.put_nowait(_echoed("4", 300_000))
        call.ask("5")
        call.end()
        await stream
        sent = call.sent()
        assert [message.infer_response.id for message in sent] == list("012345")
        assert [bool(message.error_message) for message in sent] == [False, False, False, True, False, False]
        assert [len(sent[at].infer_response.raw_output_contents[0]) for at in (1, 4)] == [400_000, 1_200_000]
        assert all(final(message) for message in sent if not message.error_message)

    run(scenario, FakeEngine(simple(), large))


class _Pouring(FakeEngine):
    """Counts the responses that a stream has taken of a decoupled model."""

    taken = 0

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        async for response in super().stream(request):
            self.taken += 1
            yield response


def test_unsent_responses_of_a_decoupled_model_are_bounded_and_delay_no_other_request():
    engine = _Pouring(simple(), decoupled(responses=50, name="many"))

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.reads.clear()
        call.ask("0", model="many")
        for _ in range(200):
            await asyncio.sleep(0)
        call.ask("1")
        for _ in range(200):
            await asyncio.sleep(0)
        # Four unsent, one in the transport, one that waits for room, and one more that shows whether it is the last.
        assert engine.taken <= 7
        call.end()
        call.reads.set()
        await stream
        ids = [message.infer_response.id for message in call.sent()]
        assert (ids.count("0"), ids.count("1")) == (50, 1)
        assert ids.index("1") <= 6

    run(scenario, engine, Limits(stream_responses=4))


def test_cancelled_stream_cancels_its_decoupled_requests_and_their_responses():
    engine = _Pouring(decoupled(responses=50, name="many"))

    async def scenario(call: FakeStreamCall, stream: asyncio.Task[None]) -> None:
        call.reads.clear()
        for request_id in ("0", "1"):
            call.ask(request_id, model="many")
        for _ in range(200):
            await asyncio.sleep(0)
        assert engine.reserved_bytes
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        assert not engine.reserved_bytes

    run(scenario, engine, Limits(stream_responses=4))
