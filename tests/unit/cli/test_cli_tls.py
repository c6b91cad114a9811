"""TLS settings of the command from the environment, and addresses that are sockets."""

import pytest

from stoker.cli.connection import tls_for
from stoker.cli.output import CommandFailed
from stoker.cli.protocols import Protocol, target


def test_certificates_from_the_environment_apply_to_encrypted_addresses(monkeypatch, tmp_path):
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("STOKER_TLS_CA", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("STOKER_TLS_SERVER_NAME", "cards.example")
    found = tls_for("grpcs://host:1")
    assert found is not None
    assert (found.ca, found.cert, found.server_name) == (str(tmp_path / "ca.pem"), None, "cards.example")
    assert tls_for("https://host") == found
    assert tls_for("grpc://host:1") is None


def test_system_certificates_apply_by_default(monkeypatch):
    monkeypatch.delenv("STOKER_TLS_CA", raising=False)
    assert tls_for("https://host") is None


def test_unusable_certificate_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("STOKER_TLS_CERT", str(tmp_path / "no.pem"))
    with pytest.raises(CommandFailed, match=r"STOKER_TLS_CERT=.*no\.pem: no such file"):
        tls_for("https://host")
    (tmp_path / "no.pem").touch()
    with pytest.raises(CommandFailed, match="belong together"):
        tls_for("https://host")


def test_socket_is_reached_by_both_protocols():
    assert target(None, "unix:/run/s").url == "grpc+unix:///run/s"
    assert target(None, "http+unix:///run/s").protocol is Protocol.KSERVE_HTTP
    assert target(Protocol.KSERVE_HTTP, "unix:/run/s").url == "http+unix:///run/s"
