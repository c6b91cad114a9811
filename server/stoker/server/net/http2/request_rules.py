"""The rules for the header lists of requests and for trailers (RFC 9113, sections 8.2 and 8.3)."""

import re
from typing import Final

from stoker.server.net.http2.events import Headers

#: Section 8.2.1: visible ASCII but for upper case and colon.
_NAME: Final = re.compile(rb"[!-9;-@\[-~]+").fullmatch
#: Section 8.2.2.
_CONNECTION_FIELDS: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
#: Passed fields that a connection remembers, and the size of the largest.
_KEPT_FIELDS: Final = 128
_KEPT_FIELD_BYTES: Final = 256
#: A length above it is taken for nonsense rather than for a number.
_LENGTH_DIGITS: Final = 18


class MalformedError(Exception):
    """A header list breaks a rule; the text says which."""


class RequestRules:
    """Checks requests, and remembers fields that have passed. Confined to: one connection, so that no other client can probe its fields."""

    __slots__ = ("_passed", "_passed_pseudo")

    def __init__(self) -> None:
        #: Valid regular fields, and pseudo-header fields with a valid name and value.
        self._passed: set[tuple[bytes, bytes]] = set()
        self._passed_pseudo: set[tuple[bytes, bytes]] = set()

    @property
    def passed_fields(self) -> int:
        """Regular fields that are remembered as valid."""
        return len(self._passed)

    def check(self, headers: Headers) -> int | None:
        """Checks a request's header list.

        Returns:
            The value of content-length, None without one.

        Raises:
            MalformedError: a rule is broken.
        """
        passed = self._passed
        pseudo: dict[bytes, bytes] = {}
        host = length = None
        for position, field in enumerate(headers):
            if field in passed:
                continue
            name, value = field
            if name[:1] == b":":
                if field not in self._passed_pseudo:
                    if name not in _PSEUDO:
                        raise MalformedError(f"unknown pseudo-header field {_shown(name)}")
                    if _is_bad_value(value):
                        raise MalformedError(f"invalid value of {_shown(name)}")
                    _remember(self._passed_pseudo, field)
                if name in pseudo:
                    raise MalformedError(f"pseudo-header field {_shown(name)} twice")
                if len(pseudo) != position:
                    raise MalformedError(f"pseudo-header field {_shown(name)} behind regular fields")
                pseudo[name] = value
                continue
            _check_field(name, value)
            if name == b"host":
                host = _once(name, host, value)
            elif name == b"content-length":
                length = _once(name, length, value)
            else:
                _remember(passed, field)
        _check_pseudo(pseudo)
        authority = pseudo.get(b":authority")
        if host is not None and authority is not None and host.lower() != authority.lower():
            raise MalformedError("host and :authority differ")
        return None if length is None else _length(length)


def check_trailers(headers: Headers) -> None:
    """Checks the fields behind a body.

    Raises:
        MalformedError: a rule is broken.
    """
    for name, value in headers:
        if name[:1] == b":":
            raise MalformedError(f"pseudo-header field {_shown(name)} in trailers")
        _check_field(name, value)


def _is_bad_value(value: bytes) -> bool:
    """Section 8.2.1: no NUL, CR or LF, no blank at either end. Four searches are faster than one pattern for long values."""
    return b"\0" in value or b"\n" in value or b"\r" in value or value.strip(b" \t") != value


def _remember(passed: set[tuple[bytes, bytes]], field: tuple[bytes, bytes]) -> None:
    if len(field[0]) + len(field[1]) <= _KEPT_FIELD_BYTES:
        if len(passed) >= _KEPT_FIELDS:
            passed.clear()
        passed.add(field)


def _check_pseudo(pseudo: dict[bytes, bytes]) -> None:
    method = pseudo.get(b":method")
    if not method:
        raise MalformedError("no :method")
    if method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo or not pseudo.get(b":authority"):
            raise MalformedError("CONNECT takes :authority, and neither :scheme nor :path")
        return
    for name in (b":scheme", b":path"):
        if not pseudo.get(name):
            raise MalformedError(f"no {name.decode()}")


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME(name):
        raise MalformedError(f"invalid field name {_shown(name)}")
    if _is_bad_value(value):
        raise MalformedError(f"invalid value of {_shown(name)}")
    if name in _CONNECTION_FIELDS or (name == b"te" and value.lower() != b"trailers"):
        raise MalformedError(f"{_shown(name)} concerns connections, which HTTP/2 forbids")


def _once(name: bytes, earlier: bytes | None, value: bytes) -> bytes:
    if earlier is not None and earlier != value:
        raise MalformedError(f"{_shown(name)} twice, with different values")
    return value


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
        raise MalformedError("content-length is no number")
    return int(value)


def _shown(name: bytes) -> str:
    return ascii(name[:64].decode("latin-1"))
