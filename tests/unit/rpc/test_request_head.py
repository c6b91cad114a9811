"""The parsing of the header fields of a request."""

import base64
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.rpc.framing import Encoding
from stoker.server.rpc.method import Kind, Method, in_task, method_table
from stoker.server.rpc.rejection import CallFault
from stoker.server.rpc.request_head import NotGrpc, RequestHead, read_head
from stoker.server.rpc.status import kserve_status
from stoker.server.rpc.wire_metadata import binary_metadata, metadata_fields, percent_encoded, text_metadata

PLAIN = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/a.B/C",
    b":authority": b"localhost",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}


async def never(data: bytes, call: object) -> bytes:
    raise AssertionError


METHODS = method_table([Method(path="/a.B/C", kind=Kind.UNARY, start=in_task(never), status=kserve_status, most_bytes=10)])


def head(**fields: bytes | None) -> RequestHead:
    given = PLAIN | {name.replace("_", "-").encode(): value for name, value in fields.items() if value is not None}
    for name, value in fields.items():
        if value is None:
            del given[name.replace("_", "-").encode()]
    return read_head(tuple(given.items()), METHODS)


def test_plain_request_is_parsed():
    found = head()
    assert (found.method.path, found.timeout_ns, found.encoding, dict(found.metadata)) == ("/a.B/C", None, None, {})


@pytest.mark.parametrize("content_type", [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_grpc_content_types_are_accepted(content_type: bytes):
    assert head(content_type=content_type).method.path == "/a.B/C"


@pytest.mark.parametrize("content_type", [None, b"", b"application/json", b"application/grpc-web", b"text/plain"])
def test_other_content_types_get_status_415(content_type: bytes | None):
    with pytest.raises(NotGrpc) as caught:
        head(content_type=content_type)
    assert caught.value.status == 415


def test_other_http_methods_get_status_405():
    with pytest.raises(NotGrpc) as caught:
        read_head(tuple((PLAIN | {b":method": b"GET"}).items()), METHODS)
    assert caught.value.status == 405


@pytest.mark.parametrize(
    ("text", "timeout_ns"),
    [(b"1n", 1), (b"2u", 2000), (b"3m", 3_000_000), (b"4S", 4 * 10**9), (b"5M", 300 * 10**9), (b"6H", 6 * 3600 * 10**9), (b"0m", 0)],
)
def test_timeouts_are_parsed_in_every_unit(text: bytes, timeout_ns: int):
    assert head(grpc_timeout=text).timeout_ns == timeout_ns


def test_timeout_beyond_every_clock_is_a_hundred_years():
    assert head(grpc_timeout=b"99999999H").timeout_ns == 100 * 365 * 24 * 3600 * 10**9


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"te": None}, 13, "te: trailers"),
        ({"te": b"gzip"}, 13, "te: trailers"),
        ({"grpc_timeout": b"123456789m"}, 13, "malformed"),
        ({"grpc_timeout": b"1"}, 13, "malformed"),
        ({"grpc_timeout": b"-1m"}, 13, "malformed"),
        ({"grpc_timeout": b"1m "}, 13, "malformed"),
        ({"grpc_encoding": b"snappy"}, 12, "'snappy' is not supported"),
        ({"x_bin": b"!"}, 13, "'x-bin' is not base64"),
    ],
)
def test_malformed_fields_are_refused(fields: dict[str, bytes | None], code: int, text: str):
    with pytest.raises(CallFault, match=text) as caught:
        head(**fields)
    assert caught.value.rejection.code == code


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"/a.B/Nope", r"unknown method 'Nope' of the service a\.B"),
        (b"/x.Y/Z", r"unknown service 'x\.Y'"),
        (b"/", "unknown service ''"),
        (b"/" + b"x" * 10_000, "unknown service 'x{127}'"),
    ],
)
def test_unknown_methods_are_unimplemented(path: bytes, text: str):
    with pytest.raises(CallFault, match=text) as caught:
        read_head(tuple((PLAIN | {b":path": path}).items()), METHODS)
    assert caught.value.rejection.code == 12


def test_encodings_are_found_by_name():
    assert head(grpc_encoding=b"gzip").encoding is Encoding.GZIP
    assert head(grpc_encoding=b"deflate").encoding is Encoding.DEFLATE
    assert head(grpc_encoding=b"identity").encoding is None


def test_other_fields_are_metadata_and_binary_metadata_are_decoded():
    found = head(user_agent=b"me", x_one=b"1", x_two_bin=base64.b64encode(b"\0\xff\1").rstrip(b"="), grpc_timeout=b"1S")
    assert dict(found.metadata) == {"user-agent": "me", "x-one": "1"}
    assert dict(found.binary_metadata) == {"x-two-bin": b"\0\xff\1"}
    assert found.metadata is found.metadata


def test_last_of_several_values_applies():
    fields = ((b"x", b"1"), (b"x", b"2"), (b"y-bin", b"AAA,AQ"), (b"z-bin", b"AAA="), (b"z-bin", b"Ag=="))
    assert text_metadata(fields) == {"x": "2"}
    assert binary_metadata(fields) == {"y-bin": b"\1", "z-bin": b"\2"}


@given(value=st.binary(max_size=100))
def test_binary_metadata_round_trip(value: bytes):
    ((name, encoded),) = metadata_fields([("X-Bin", value)])
    assert b"=" not in encoded
    assert binary_metadata([(name, encoded)]) == {"x-bin": value}


@given(text=st.text(max_size=200))
def test_texts_round_trip_through_percent_encoding(text: str):
    encoded = percent_encoded(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode("ascii"), errors="strict") == text.encode("utf-8", "replace").decode()


def test_unsendable_text_metadata_are_made_printable():
    assert metadata_fields([("a", "b\r\nc: d\u00e9 ")]) == [(b"a", b"b??c: d?")]
