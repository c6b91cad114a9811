"""How failed calls end, without a transport."""

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2

from stoker.backends.api.errors import InvalidRequest, NotFound, Overloaded
from stoker.server.rpc import status
from stoker.server.rpc.method import Kind, Method, in_task, method_table
from stoker.server.rpc.rejection import rejection_of
from stoker.server.rpc.status import STATUS_DETAILS, kserve_status


async def never(data: bytes, call: object) -> bytes:
    raise AssertionError


def method(path: str = "/a.B/C") -> Method:
    return Method(path=path, kind=Kind.UNARY, start=in_task(never), status=kserve_status, most_bytes=10)


def fields(data: bytes) -> dict[int, list[bytes | int]]:
    """The fields of a serialised message whose lengths and numbers take one or two bytes."""
    found: dict[int, list[bytes | int]] = {}
    at = 0
    while at < len(data):
        tag, at = data[at], at + 1
        value, shift = 0, 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                break
        if tag & 7:
            found.setdefault(tag >> 3, []).append(data[at : at + value])
            at += value
        else:
            found.setdefault(tag >> 3, []).append(value)
    return found


def test_error_has_the_code_of_its_protocol_and_no_trailers():
    assert rejection_of(NotFound("no 'x'"), method()) == (5, "no 'x'", ())


def test_overload_has_a_retry_delay_in_both_forms():
    refusal = rejection_of(Overloaded("queue é full", retry_after_s=2.5), method())
    assert (refusal.code, refusal.text) == (14, "queue é full")
    trailers = dict(refusal.trailers)
    assert trailers["retry-after"] == "3"
    details = trailers[STATUS_DETAILS]
    assert isinstance(details, bytes)
    status = fields(details)
    # Clients refuse details whose code or text is not that of the call.
    assert (status[1], status[2]) == ([14], ["queue é full".encode()])
    retry, info = (any_pb2.Any.FromString(each) for each in status[3])  # type: ignore[arg-type]
    assert (retry.type_url, info.type_url) == ("type.googleapis.com/google.rpc.RetryInfo", "type.googleapis.com/google.rpc.ErrorInfo")
    (delay,) = fields(retry.value)[1]
    assert duration_pb2.Duration.FromString(delay) == duration_pb2.Duration(seconds=2, nanos=500_000_000)  # type: ignore[arg-type]
    assert fields(info.value) == {1: [b"OVERLOADED"], 2: [b"stoker"]}


def test_internal_error_is_hidden_from_the_client_and_logged(caplog: pytest.LogCaptureFixture):
    try:
        raise RuntimeError("secret")
    except RuntimeError as error:
        refusal = rejection_of(error, method("/a.B/Broken"))
    assert refusal == (13, "internal error: see the server's log", ())
    assert "/a.B/Broken failed unexpectedly" in caplog.text
    assert 'RuntimeError("secret")' in caplog.text
    assert caplog.records[0].exc_info is None


def test_long_text_is_truncated_to_the_clients_limit():
    text = rejection_of(InvalidRequest("%" * 3000), method()).text
    assert text == "%" * 633 + "..."


def test_status_codes_equal_those_of_grpcio():
    ours = {name: value for name, value in vars(status).items() if isinstance(value, int) and not name.startswith("_")}
    assert ours == {code.name: code.value[0] for code in grpc.StatusCode if code.name in ours}


@pytest.mark.parametrize("path", ["a.B/C", "/a.B", "/a.B/", "//C", "/a.B/C/D", ""])
def test_invalid_paths_are_refused(path: str):
    with pytest.raises(ValueError, match=r"must be /package\.Service/Name"):
        method_table([method(path)])


def test_two_methods_of_one_path_are_refused():
    with pytest.raises(ValueError, match=r"two methods have the path /a\.B/C"):
        method_table([method(), method()])
