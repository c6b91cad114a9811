"""Addresses, TLS settings and retry policies are validated when they are created."""

import pytest

import stoker_client as sdk
from stoker_client.settings import Endpoint, make_connection, parse_url


@pytest.mark.parametrize(
    ("url", "protocol", "endpoint"),
    [
        ("grpc://host:1", None, Endpoint("grpc", False, "host", 1)),
        ("grpcs://host", None, Endpoint("grpc", True, "host", 8500)),
        ("http://host/", None, Endpoint("http", False, "host", 8501)),
        ("https://host:443/models/", None, Endpoint("http", True, "host", 443, "/models")),
        ("host:7", "grpc", Endpoint("grpc", False, "host", 7)),
        ("http://[::1]:7", "http", Endpoint("http", False, "::1", 7)),
        ("unix:/run/s", None, Endpoint("grpc", False, "localhost", 0, socket_path="/run/s")),
        ("unix:///run/s", "http", Endpoint("http", False, "localhost", 0, socket_path="/run/s")),
        ("http+unix:///run/s", None, Endpoint("http", False, "localhost", 0, socket_path="/run/s")),
        ("grpc+unix:///run/s", "grpc", Endpoint("grpc", False, "localhost", 0, socket_path="/run/s")),
    ],
)
def test_address_is_parsed_into_its_parts(url, protocol, endpoint):
    assert parse_url(url, protocol) == endpoint
    assert parse_url(endpoint.url) == endpoint


@pytest.mark.parametrize(
    ("url", "protocol", "text"),
    [
        ("host:1", None, "does not say the protocol"),
        ("ftp://host", None, "unknown scheme 'ftp'"),
        ("http://host", "grpc", "expected a grpc one"),
        ("grpc://host:99999", None, "no usable port"),
        ("grpc://", None, "not an address"),
        ("grpc://host/path", None, "not an address"),
        ("http+unix:///run/s", "grpc", "is a http address; expected a grpc one"),
        ("http://user:secret@host", None, "not an address"),
    ],
)
def test_invalid_address_is_named(url, protocol, text):
    with pytest.raises(ValueError, match=text):
        parse_url(url, protocol)


def test_connect_chooses_the_client_by_the_address():
    kinds = {"grpc://h": sdk.GrpcClient, "http://h": sdk.HttpClient}
    for url, kind in kinds.items():
        with sdk.connect(url) as client:
            assert type(client) is kind
    assert type(sdk.connect_async("grpc://h")) is sdk.AsyncGrpcClient
    assert type(sdk.connect_async("https://h")) is sdk.AsyncHttpClient


def test_contradictory_settings_are_refused():
    with pytest.raises(ValueError, match="is a plain address"):
        sdk.connect("http://h", tls=sdk.TlsConfig())
    with pytest.raises(ValueError, match="cert and key together"):
        sdk.TlsConfig(cert="client.pem")
    with pytest.raises(ValueError, match="both given"):
        sdk.connect("http://h", api_key="k", headers={"Authorization": "Basic x"})
    with pytest.raises(ValueError, match="max_message_bytes is 0"):
        sdk.connect("http://h", max_message_bytes=0)
    with pytest.raises(ValueError, match="max_attempts is 0"):
        sdk.RetryPolicy(max_attempts=0)
    with pytest.raises(ValueError, match="first_backoff_s is 9"):
        sdk.RetryPolicy(first_backoff_s=9)
    with pytest.raises(ValueError, match="budget is -1"):
        sdk.RetryPolicy(budget=-1)


def test_connection_never_prints_its_key():
    connection = make_connection("grpc://h", "grpc", tls=None, api_key="s3cret", headers=None, max_message_bytes=1)
    assert "s3cret" not in repr(connection)
