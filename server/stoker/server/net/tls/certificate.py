"""When a certificate is valid: the one thing that Python's `ssl` tells of the other side's certificate only, never of one's own.

A walk through the outer shell of X.509's DER (RFC 5280, section 4.1) to the field `validity`, and no further.
"""

import re
import ssl
from datetime import UTC, datetime
from typing import Final, NamedTuple

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
#: RFC 5280, section 4.1.2.5.1: two digits of a year below this are of this century.
_CENTURY_TURN: Final = 50
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Validity(NamedTuple):
    """The moments between which a certificate is good."""

    not_before: datetime
    not_after: datetime


class _Item(NamedTuple):
    """One element of DER: its tag, where its content stands, and where the next one begins."""

    tag: int
    start: int
    end: int


def pem_certificates(text: str) -> list[str]:
    """The certificates in `text`, in their order, each as PEM."""
    return _PEM.findall(text)


def validity_of(pem: str) -> Validity:
    """When the certificate is valid.

    Raises:
        ValueError: `pem` is no certificate.
    """
    der = ssl.PEM_cert_to_DER_cert(pem)
    try:
        certificate = _item(der, 0, _SEQUENCE)
        at = _item(der, certificate.start, _SEQUENCE).start
        if der[at] == _VERSION:
            at = _item(der, at).end
        # The serial number, the signature's algorithm and the issuer stand before it.
        for _ in range(3):
            at = _item(der, at).end
        begin = _item(der, _item(der, at, _SEQUENCE).start)
        end = _item(der, begin.end)
        return Validity(_moment(begin.tag, der[begin.start : begin.end]), _moment(end.tag, der[end.start : end.end]))
    except IndexError:
        raise ValueError("it ends before its validity") from None


def _item(der: bytes, at: int, expected: int | None = None) -> _Item:
    """The element at `at`; of tag `expected`, if given."""
    tag, size = der[at], der[at + 1]
    start = at + 2
    if size & 0x80:
        count = size & 0x7F
        start += count
        size = int.from_bytes(der[at + 2 : start])
    if expected is not None and tag != expected:
        raise ValueError(f"tag {tag:#x} stands where {expected:#x} belongs")
    if start + size > len(der):
        raise ValueError("a part of it is longer than the whole")
    return _Item(tag, start, start + size)


def _moment(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii", "replace")
    if tag == _UTC_TIME:
        text = ("20" if int(text[:2]) < _CENTURY_TURN else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag:#x} stands where a time belongs")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
