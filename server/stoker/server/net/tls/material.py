"""A certificate, its key and the clients' certificate authority: read, checked against each other, made into an `SSLContext`.

The files are read once, and their contents are checked as read: a file that changes in between cannot put an unchecked certificate in use.
`validity_of` walks through the outer shell of X.509's DER (RFC 5280, section 4.1) to the field `validity`: Python's `ssl` reports the
validity of the peer's certificate only.
"""

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from stoker.backends.api.errors import ServingError
from stoker.server.net.settings import PemFiles, SslConfigFile
from stoker.server.net.tls.alerts import AlertingContext

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
#: RFC 5280, section 4.1.2.5.1: two digits of a year below this are of this century.
_CENTURY_TURN: Final = 50
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Validity(NamedTuple):
    """The period in which a certificate is valid."""

    not_before: datetime
    not_after: datetime


class _Item(NamedTuple):
    """One element of DER: its tag, the start of its content, and its end."""

    tag: int
    start: int
    end: int


def pem_certificates(text: str) -> list[str]:
    """The certificates in `text`, in order, each as PEM."""
    return _PEM.findall(text)


def validity_of(pem: str) -> Validity:
    """The validity of the certificate.

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


MAX_FILE_BYTES: Final = 1 << 20
_KEY_MARK: Final = "PRIVATE KEY-----"
_ENCRYPTED_MARKS: Final = ("BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED")
#: Forward secrecy and authenticated encryption alone; all of them are allowed below HTTP/2 (RFC 9113, section 9.2.2). TLS 1.3 has its own.
_TLS12_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class TlsError(OSError):
    """A certificate or key that cannot be used; the text is one line that names the file and its error."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The certificate and key of one port, and the authority of its clients, as PEM.

    Attributes:
        cert: The chain, the server's own certificate first.
        key: Its private key; never printed.
        client_ca: The authority of client certificates; None: clients present none.
    """

    cert: str
    key: str = field(repr=False)
    client_ca: str | None = None

    def not_after(self) -> datetime:
        """The end of the validity of the server's own certificate."""
        return validity_of(pem_certificates(self.cert)[0]).not_after


def read_material(source: PemFiles | SslConfigFile, now: datetime) -> TlsMaterial:
    """Reads the files and checks their contents. Blocks.

    Args:
        source: The files.
        now: A certificate that is not valid at this moment is rejected: no client would accept it.

    Raises:
        TlsError: a file cannot be read, or its contents cannot be used.
    """
    if isinstance(source, SslConfigFile):
        try:
            texts = source.parse(_read(source.path), str(source.path))
        except ServingError as error:
            raise TlsError(str(error)) from error
        names = {part: f"{source.path}: {part}" for part in ("server_cert", "server_key", "custom_ca")}
        cert_name, key_name, ca_name = names.values()
        material = TlsMaterial(*texts)
    else:
        cert_name, key_name, ca_name = str(source.cert), str(source.key), str(source.client_ca)
        client_ca = None if source.client_ca is None else _read(source.client_ca)
        material = TlsMaterial(_read(source.cert), _read(source.key), client_ca)
    _check_certificate(material.cert, cert_name, now)
    _check_key(material, key_name, cert_name)
    return material if material.client_ca is None else replace(material, client_ca=_authorities(material.client_ca, ca_name))


def make_context(material: TlsMaterial, protocol: str) -> ssl.SSLContext:
    """The context of connections that speak `protocol` (its name in ALPN), TLS 1.2 or later."""
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS12_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols([protocol])
    _load_pair(context, material)
    if material.client_ca is not None:
        context.load_verify_locations(cadata=material.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session is not verified again: a client whose authority was withdrawn would still be accepted.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise TlsError(f"{path}: larger than {MAX_FILE_BYTES} bytes, which no certificate or key is")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise TlsError(f"{path}: not text: expected PEM, which begins with -----BEGIN") from None


def _check_certificate(text: str, name: str, now: datetime) -> None:
    certificates = pem_certificates(text)
    if not certificates:
        raise TlsError(f"{name}: no certificate in it: expected PEM with -----BEGIN CERTIFICATE-----")
    try:
        validity = validity_of(certificates[0])
    except ValueError as error:
        raise TlsError(f"{name}: the certificate cannot be read: {error}") from error
    if now >= validity.not_after:
        raise TlsError(f"{name}: the certificate has expired: it was valid until {validity.not_after:%Y-%m-%d %H:%M:%S} UTC")
    if now < validity.not_before:
        raise TlsError(f"{name}: the certificate is not valid yet: it is from {validity.not_before:%Y-%m-%d %H:%M:%S} UTC on")


def _check_key(material: TlsMaterial, key_name: str, cert_name: str) -> None:
    if any(mark in material.key for mark in _ENCRYPTED_MARKS):
        raise TlsError(f"{key_name}: the key is encrypted, and a server cannot ask for a passphrase: provide an unencrypted key")
    if _KEY_MARK not in material.key:
        raise TlsError(f"{key_name}: no key in it: expected PEM with -----BEGIN PRIVATE KEY-----")
    try:
        _load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), material)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{key_name}: the key does not belong to the certificate in {cert_name}") from error
        raise TlsError(f"{cert_name}, {key_name}: OpenSSL does not take them: {error.reason or error}") from error


def _authorities(text: str, name: str) -> str:
    """The certificates alone: `ssl` does not accept the text between them, such as names in any script."""
    certificates = "\n".join(pem_certificates(text))
    if not certificates:
        raise TlsError(f"{name}: no certificate in it: expected PEM with -----BEGIN CERTIFICATE-----")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=certificates)
    except (ssl.SSLError, TypeError) as error:  # TypeError: it is not ASCII
        raise TlsError(f"{name}: the certificates cannot be read: {getattr(error, 'reason', None) or error}") from error
    return certificates + "\n"


def _load_pair(context: ssl.SSLContext, material: TlsMaterial) -> None:
    """Loads the pair from files in memory, where the system has them: `ssl` accepts only file names, and a key must not be on a disk."""
    with _as_file(material.cert) as cert, _as_file(material.key) as key:
        # An empty passphrase: without one OpenSSL would ask on the terminal.
        context.load_cert_chain(cert, key, password="")


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(text)
            file.flush()
            yield file.name
