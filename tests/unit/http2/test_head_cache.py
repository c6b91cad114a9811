"""Heads of calls that are kept: the same object for the same fields, and never more than a bound."""

from stoker.server.net.http2.events import Headers
from stoker.server.rpc.http2.connection_calls import HeadCache
from stoker.server.rpc.method import Kind, method_table
from tests.fakes.grpc_peer import method

PATH = "/a.B/Method"


async def echo(data: bytes, call) -> bytes:
    return data


def fields(*metadata: tuple[bytes, bytes]) -> Headers:
    start = ((b":method", b"POST"), (b":path", PATH.encode()), (b"content-type", b"application/grpc"), (b"te", b"trailers"))
    return (*start, *metadata)


def test_fields_that_are_the_same_object_are_read_once():
    cache = HeadCache(method_table([method(PATH, echo, Kind.UNARY)]))
    headers, others = fields(), fields((b"a", b"1"))
    head = cache.read(headers)
    assert cache.known[id(headers)] == (headers, head)
    assert cache.read(others).metadata["a"] == "1"


def test_large_metadata_that_never_repeat_are_not_cached():
    cache = HeadCache(method_table([method(PATH, echo, Kind.UNARY)]))
    kept = [fields((b"a", str(at).encode() * 4000)) for at in range(1000)]
    for headers in kept:
        cache.read(headers)
    held_bytes = sum(len(name) + len(value) for headers, _ in cache.known.values() for name, value in headers)
    assert 0 < held_bytes <= 64 * 1024
