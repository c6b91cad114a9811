"""Certificates that change while a server runs."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.server.net.settings import PemFiles
from stoker.server.net.tls.key_ring import H2, KeyRing
from stoker.server.net.tls.material import TlsError
from tests.fakes.certificates import Authority, Pair


def ring_of(folder: Path, pair: Pair, client_ca: Path | None = None) -> KeyRing:
    put(folder, pair)
    return KeyRing("gRPC", PemFiles(cert=folder / "cert", key=folder / "key", client_ca=client_ca), H2)


def put(folder: Path, pair: Pair) -> None:
    shutil.copy(pair.cert, folder / "cert")
    shutil.copy(pair.key, folder / "key")


def follow(ring: KeyRing, *steps: Callable[[], object]) -> None:
    """Lets the ring check its files once after each step."""
    left = list(steps)

    async def wait(period_s: float) -> None:
        assert period_s == 5
        if not left:
            raise asyncio.CancelledError
        left.pop(0)()

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await ring.follow(5, wait=wait)

    asyncio.run(main())


def nothing() -> None:
    """No change."""


def test_new_connections_get_the_new_pair(tmp_path, server_pair, other_pair, caplog):
    ring = ring_of(tmp_path, server_pair)
    first = ring.context
    with caplog.at_level(logging.INFO, "stoker.tls"):
        follow(ring, nothing, lambda: put(tmp_path, other_pair), nothing)
    assert ring.context is not first
    assert ring.material.cert == other_pair.cert.read_text()
    assert caplog.text.count("the gRPC port has a new certificate, valid until") == 1


def test_invalid_pair_keeps_the_old_one_and_is_logged_once(tmp_path, server_pair, other_pair, caplog):
    ring = ring_of(tmp_path, server_pair)
    first = ring.context
    follow(ring, lambda: shutil.copy(other_pair.key, tmp_path / "key"), nothing, nothing)
    assert ring.context is first
    assert caplog.text.count("the key does not belong to the certificate") == 1
    assert "goes on with the certificate that it has" in caplog.text
    # The other half comes a moment later.
    follow(ring, lambda: shutil.copy(other_pair.cert, tmp_path / "cert"))
    assert ring.material.key == other_pair.key.read_text()


def test_missing_file_leaves_the_old_pair(tmp_path, server_pair):
    ring = ring_of(tmp_path, server_pair)
    first = ring.context
    follow(ring, (tmp_path / "cert").unlink, lambda: put(tmp_path, server_pair))
    assert ring.context is first


def test_new_client_authority_is_used(tmp_path, server_pair, authority: Authority):
    shutil.copy(authority.cert, tmp_path / "ca")
    ring = ring_of(tmp_path, server_pair, tmp_path / "ca")
    other = Authority(tmp_path / "other")
    follow(ring, lambda: shutil.copy(other.cert, tmp_path / "ca"))
    assert ring.requires_client_certificate
    assert [each["subject"] for each in ring.context.get_ca_certs()] == [((("commonName", "Throw-away CA"),),)]
    assert ring.material.client_ca == other.cert.read_text()


def test_certificate_that_ends_soon_is_logged_once(tmp_path, server_pair, other_pair, caplog):
    ring = ring_of(tmp_path, server_pair)
    follow(ring, nothing, nothing)
    assert caplog.text.count("the gRPC port's certificate is valid only until") == 1
    caplog.clear()
    follow(ring, lambda: put(tmp_path, other_pair))
    assert "valid only until" not in caplog.text


def test_key_ring_without_a_valid_pair_is_refused(tmp_path, server_pair, other_pair):
    with pytest.raises(TlsError, match="does not belong"):
        ring_of(tmp_path, Pair(server_pair.cert, other_pair.key))
