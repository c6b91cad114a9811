"""`google.rpc.Status`, the value of `grpc-status-details-bin`: when to try again, in a form that client libraries act upon.

Written by hand: it is four nested messages of two fields each, and googleapis-common-protos would be a dependency for nothing else.
Field numbers: google/rpc/status.proto, google/rpc/error_details.proto, google/protobuf/any.proto and duration.proto.
"""

from stoker.backends.api.wire import encoded_varint

#: Name of the trailer.
STATUS_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_DOMAIN = "stoker"
_NS_PER_S = 1_000_000_000


def status_details(code: int, text: str, reason: str, retry_after_s: float) -> bytes:
    """A serialised `google.rpc.Status` with a `RetryInfo` and an `ErrorInfo`.

    Args:
        code: The gRPC status code of the call; clients refuse details whose code or text is another.
        text: The text of the call's status.
        reason: The error's name in the server's taxonomy, in upper case.
        retry_after_s: When trying again makes sense, seconds.
    """
    delay_ns = round(retry_after_s * _NS_PER_S)
    duration = _number(1, delay_ns // _NS_PER_S) + _number(2, delay_ns % _NS_PER_S)
    retry_info = _nested(1, duration)
    error_info = _nested(1, reason.encode()) + _nested(2, _DOMAIN.encode())
    return b"".join(
        (
            _number(1, code),
            _nested(2, text.encode(errors="replace")),
            _nested(3, _any(_RETRY_INFO, retry_info)),
            _nested(3, _any(_ERROR_INFO, error_info)),
        )
    )


def _any(type_url: str, value: bytes) -> bytes:
    return _nested(1, type_url.encode()) + _nested(2, value)


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3,)) + encoded_varint(value) if value else b""


def _nested(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + encoded_varint(len(value)) + value
