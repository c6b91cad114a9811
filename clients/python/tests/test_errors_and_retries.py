"""Which failures become which error, and which calls are sent again. Sleeps are fake: a test's time passes only in them."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

import stoker_client as sdk
from stoker_client.grpc_errors import error_from_status
from stoker_client.retry import may_resend
from tests.fakes.fake_kserve import Failure

Code = grpc.StatusCode
INPUTS = {"x": np.zeros(2, np.float32)}
REJECTED = Failure(503, Code.UNAVAILABLE, "Exceeds maximum queue size", retry_after="1")
NOT_READY = Failure(503, Code.UNAVAILABLE, "model is not ready")


@pytest.mark.parametrize(
    ("failure", "kind_of_error"),
    [
        (Failure(400, Code.INVALID_ARGUMENT), sdk.InvalidRequest),
        (Failure(422, Code.OUT_OF_RANGE), sdk.InvalidRequest),
        (Failure(401, Code.UNAUTHENTICATED), sdk.Unauthenticated),
        (Failure(403, Code.PERMISSION_DENIED), sdk.Forbidden),
        (Failure(404, Code.NOT_FOUND), sdk.NotFound),
        (Failure(400, Code.NOT_FOUND, "Request for unknown model: 'm' is not found"), sdk.NotFound),
        (Failure(409, Code.FAILED_PRECONDITION), sdk.Conflict),
        (Failure(409, Code.ALREADY_EXISTS), sdk.Conflict),
        (Failure(413, Code.RESOURCE_EXHAUSTED, "request larger than 5 bytes"), sdk.TooLarge),
        (Failure(504, Code.DEADLINE_EXCEEDED), sdk.DeadlineExceeded),
        (Failure(499, Code.CANCELLED), sdk.Cancelled),
        (Failure(501, Code.UNIMPLEMENTED), sdk.Unsupported),
        (Failure(500, Code.INTERNAL), sdk.ServerError),
        (Failure(418, Code.INVALID_ARGUMENT), sdk.InvalidRequest),
        (NOT_READY, sdk.Unavailable),
    ],
    ids=lambda value: value.code.name if isinstance(value, Failure) else value.__name__,
)
def test_status_becomes_its_error_and_is_not_retried(client, fake, fake_time, failure, kind_of_error):
    fake.failures.append(failure)
    with pytest.raises(sdk.StokerError, match=failure.message) as caught:
        client.infer("echo", INPUTS)
    assert type(caught.value) is kind_of_error
    assert caught.value.status in (failure.http, failure.code.name)
    assert len(fake.calls) == 1
    assert fake_time.slept == []


def test_refusal_with_retry_after_is_sent_again_after_it(client, fake, fake_time):
    fake.failures.extend([REJECTED, REJECTED])
    assert client.infer("echo", INPUTS)["x"].size == 2
    assert fake_time.slept == pytest.approx([1.1, 1.2])


def test_permanent_refusal_is_raised_with_its_retry_after(client, fake, fake_time):
    fake.failures.extend([REJECTED] * 9)
    with pytest.raises(sdk.Overloaded) as caught:
        client.infer("echo", INPUTS)
    assert caught.value.retry_after_s == 1
    assert len(fake.calls) == 4


def test_retry_after_longer_than_the_maximum_wait_is_not_waited_for(client, fake, fake_time):
    fake.failures.append(Failure(503, Code.UNAVAILABLE, retry_after="3600"))
    with pytest.raises(sdk.Overloaded):
        client.infer("echo", INPUTS)
    assert fake_time.slept == []


def test_wait_beyond_the_deadline_is_not_started(client, fake, fake_time):
    fake.failures.append(REJECTED)
    with pytest.raises(sdk.Overloaded):
        client.infer("echo", INPUTS, timeout_s=1.0)
    assert fake_time.slept == []


def test_only_reads_are_retried_after_a_possible_computation(client, fake, fake_time):
    fake.failures.extend([NOT_READY, NOT_READY])
    assert client.model_metadata("echo")["name"] == "echo"
    assert fake_time.slept == pytest.approx([0.1, 0.2])
    fake.failures.append(NOT_READY)
    with pytest.raises(sdk.Unavailable):
        client.load("echo")


def test_attempts_may_be_limited_to_one(make_client, fake):
    client = make_client(retry=sdk.RetryPolicy(max_attempts=1))
    fake.failures.append(REJECTED)
    with pytest.raises(sdk.Overloaded):
        client.infer("echo", INPUTS)
    assert len(fake.calls) == 1


def test_all_calls_of_a_client_share_a_budget_of_retries(make_client, fake):
    client = make_client(retry=sdk.RetryPolicy(max_attempts=100, budget=3))
    fake.failures.extend([REJECTED] * 6)
    with pytest.raises(sdk.Overloaded):
        client.infer("echo", INPUTS)
    assert len(fake.calls) == 1 + 3
    with pytest.raises(sdk.Overloaded):
        client.infer("echo", INPUTS)
    assert len(fake.calls) == 1 + 3 + 1
    fake.failures.clear()
    for _ in range(10):
        client.infer("echo", INPUTS)
    fake.failures.append(REJECTED)
    assert client.infer("echo", INPUTS)["x"].size == 2


def test_refused_connection_is_tried_again_with_growing_waits(make_client, kind, fake_time):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        client = make_client(f"{kind.split('.')[0]}://127.0.0.1:{bound.getsockname()[1]}", timeout_s=None)
        with pytest.raises(sdk.ConnectionFailed):
            client.infer("echo", INPUTS)
    assert fake_time.slept == pytest.approx([0.1, 0.2, 0.4])


@pytest.mark.parametrize("kind", ["http", "http.aio"])
@pytest.mark.parametrize(("call", "connections"), [("infer", 1), ("server_metadata", 4)])
def test_connection_that_breaks_within_a_request_is_retried_for_reads_only(make_client, call, connections):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted = []

        def drop_each() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                accepted.append(connection.recv(1 << 16))
                connection.close()

        thread = threading.Thread(target=drop_each)
        thread.start()
        client = make_client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        arguments = ("echo", INPUTS) if call == "infer" else ()
        with pytest.raises(sdk.ConnectionFailed) as caught:
            getattr(client, call)(*arguments)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert caught.value.request_may_have_run
    assert len(accepted) == connections


@pytest.mark.parametrize(
    ("details", "trailing", "kind_of_error", "infer_may_be_resent"),
    [
        ("failed to connect to all addresses; last error: ...", None, sdk.ConnectionFailed, True),
        ("DNS resolution failed for nowhere", None, sdk.ConnectionFailed, True),
        ("Socket closed", None, sdk.ConnectionFailed, False),
        ("recvmsg:Connection reset by peer", None, sdk.ConnectionFailed, False),
        ("Exceeds maximum queue size", None, sdk.Overloaded, True),
        ("shutting down", [("retry-after", "2")], sdk.Overloaded, True),
        ("shutting down", [("grpc-retry-pushback-ms", "500")], sdk.Overloaded, True),
        ("shutting down", [("retry-after", "soon")], sdk.Unavailable, False),
        ("upstream is away", None, sdk.Unavailable, False),
    ],
)
def test_grpc_unavailable_has_a_class_for_each_cause(details, trailing, kind_of_error, infer_may_be_resent):
    error = error_from_status(Code.UNAVAILABLE, details, trailing)
    assert type(error) is kind_of_error
    assert may_resend(error, is_read=False) is infer_may_be_resent
    assert may_resend(error, is_read=True)


def test_grpc_resource_exhausted_is_a_size_or_a_refusal():
    assert type(error_from_status(Code.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 5)", None)) is sdk.TooLarge
    assert type(error_from_status(Code.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", None)) is sdk.Overloaded


def test_error_that_is_not_json_shows_its_text(make_client, kind, fake):
    if kind.startswith("http"):
        with pytest.raises(sdk.NotFound, match="no route /prefix/v2"):
            make_client(fake.http_url + "/prefix/").server_metadata()


def test_call_ends_at_its_deadline(client, fake):
    fake.hold.clear()
    with pytest.raises(sdk.DeadlineExceeded):
        client.infer("echo", INPUTS, timeout_s=0.05)


def test_stream_ends_with_the_status_of_its_first_failure(client, fake):
    fake.failures.extend([None, Failure(404, Code.NOT_FOUND, "gone")])
    results = client.stream("echo", [INPUTS] * 3)
    assert next(results)["x"].size == 2
    with pytest.raises(sdk.NotFound, match="gone"):
        next(results)


@pytest.mark.parametrize("make", [sdk.AsyncGrpcClient, sdk.AsyncHttpClient])
def test_cancelling_a_task_cancels_its_call(fake, make):
    async def main() -> None:
        fake.hold.clear()
        async with make(fake.grpc_url if make is sdk.AsyncGrpcClient else fake.http_url) as client:
            task = asyncio.create_task(client.infer("echo", INPUTS))
            assert await asyncio.to_thread(fake.called.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            fake.hold.set()
            assert (await client.infer("echo", INPUTS))["x"].size == 2

    asyncio.run(main())


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_threads_may_share_a_client(fake, protocol):
    with sdk.connect(getattr(fake, f"{protocol}_url")) as client, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: client.infer("echo", {"n": [n]})["n"][0], range(64)))
    assert results == list(range(64))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_tasks_may_share_a_client(fake, protocol):
    async def main() -> list[int]:
        async with sdk.connect_async(getattr(fake, f"{protocol}_url")) as client:
            return [int(result["n"][0]) for result in await asyncio.gather(*(client.infer("echo", {"n": [n]}) for n in range(32)))]

    assert asyncio.run(main()) == list(range(32))
