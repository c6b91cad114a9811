"""A client that is closed, created with invalid arguments, or forked raises a `StokerError` with a remedy."""

import os

import numpy as np
import pytest

import stoker_client as sdk
from stoker_client import adlik, tfs
from stoker_client.http_client import HttpTransport
from stoker_client.per_process import PerProcess
from stoker_client.settings import make_connection
from tests.fakes.fake_adlik import FakeAdlik
from tests.fakes.fake_kserve import FakeKserve

X = {"x": np.zeros((1, 2), np.float32)}


def test_every_call_of_a_closed_client_is_refused_as_closed(client):
    client.is_live()
    client.close()
    client.close()
    for call in (
        lambda: client.infer("echo", X),
        lambda: list(client.stream("echo", [X])),
        client.is_live,
        client.index,
        lambda: client.load("echo"),
        lambda: client.statistics("echo"),
    ):
        with pytest.raises(sdk.ClientClosed, match="this client is closed") as caught:
            call()
        assert isinstance(caught.value, sdk.StokerError)
        assert isinstance(caught.value, RuntimeError)


def test_client_closed_within_a_stream_ends_it_as_closed(client):
    responses = iter(client.stream("echo", (X for _ in range(3))))
    next(responses)
    client.close()
    with pytest.raises(sdk.ClientClosed):
        list(responses)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_closed_client_of_another_protocol_is_refused_as_closed_too(scheme, fake):
    client = tfs.TfsClient(fake.grpc_url if scheme == "grpc" else fake.http_url)
    client.close()
    with pytest.raises(sdk.ClientClosed):
        client.metadata("echo")


@pytest.mark.parametrize(
    "url", ["host:1", "ftp://host", "grpc://host:99999", "grpc://", "http://[::1", "http://user:secret@host", "grpc://host/path", ""]
)
def test_invalid_address_is_a_stoker_error(url):
    for make in (sdk.connect, sdk.connect_async):
        with pytest.raises(sdk.InvalidSetting) as caught:
            make(url)
        assert isinstance(caught.value, sdk.StokerError)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("kind", ["grpc", "http"])
@pytest.mark.parametrize("headers", [{"a b": "x"}, {"x": "a\r\nb: c"}, {"": "x"}, {"x": "\x00"}, {"x": "\u00fc"}])
def test_unsendable_headers_are_refused_when_the_client_is_created(kind, headers):
    with pytest.raises(sdk.InvalidSetting, match="cannot be sent"):
        sdk.connect(f"{kind}://h", headers=headers)
    with pytest.raises(sdk.InvalidSetting, match="'authorization' cannot be sent") as caught:
        sdk.connect(f"{kind}://h", api_key="s3cret\n")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["grpcs", "https"])
def test_unusable_tls_files_are_a_stoker_error(kind, tmp_path):
    for tls in (sdk.TlsConfig(ca=tmp_path / "none.pem"), sdk.TlsConfig(cert=tmp_path / "none.pem", key=tmp_path / "none.pem")):
        for make in (sdk.connect, sdk.connect_async):
            with pytest.raises(sdk.InvalidSetting, match=r"none\.pem"):
                make(f"{kind}://h", tls=tls)


@pytest.fixture
def forked(monkeypatch):
    """Makes this process look like a child of itself."""

    def fork() -> None:
        child = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: child)

    yield fork
    monkeypatch.undo()


def test_connected_grpc_client_refuses_calls_after_a_fork(kind, client, forked):
    if not kind.startswith("grpc"):
        return
    assert client.is_live()
    pid = os.getpid()
    forked()
    for call in (client.is_live, lambda: client.infer("echo", X), lambda: list(client.stream("echo", [X]))):
        with pytest.raises(sdk.ForkedClient, match=f"has connected in process {pid},.*make the client in the child") as caught:
            call()
        assert isinstance(caught.value, sdk.StokerError)
    client.close()
    with pytest.raises(sdk.ClientClosed):
        client.is_live()


def test_client_that_has_not_connected_yet_connects_in_the_child(client, forked):
    forked()
    assert client.is_live()
    client.close()


def test_child_creates_its_own_client_and_does_not_affect_its_parents(forked):
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    kept = PerProcess(make)
    assert (kept.get(), kept.get()) == (0, 0)
    forked()
    assert (kept.get(), kept.get()) == (1, 1)
    assert kept.close() == [1]
    with pytest.raises(sdk.ClientClosed):
        kept.get()


def test_http_connections_of_the_parent_are_not_used_in_the_child(fake: FakeKserve, forked):
    connection = make_connection(fake.http_url, "http", tls=None, api_key=None, headers=None, max_message_bytes=1 << 20)
    transport = HttpTransport(connection)
    before = transport._pool.get()
    forked()
    assert transport._pool.get() is not before
    transport.close()
    assert not before.is_closed
    before.close()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_closed_adlik_context_is_refused_as_closed(protocol):
    fake = FakeAdlik()
    try:
        context = adlik.PredictContext("echo", url=fake.url(protocol), protocol=protocol)
        context.close()
        for call in (context.run, context.async_run):
            with pytest.raises(sdk.ClientClosed):
                call({"x": np.zeros((1, 4), np.float32)})
    finally:
        fake.close()
