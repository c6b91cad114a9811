"""TLS, mutual where a client certificate is given, for all four clients."""

import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stoker_client as sdk
from stoker_client.adlik import PredictContext
from tests.fakes.fake_adlik import FakeAdlik
from tests.fakes.fake_kserve import FakeKserve

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make a certificate")


def make_certificate(folder: Path, names: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    request = [str(OPENSSL), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName={names}"]
    subprocess.run([*request, *subject, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure_fake(certificate: tuple[Path, Path]) -> Iterator[FakeKserve]:
    server = FakeKserve(tls=certificate)
    yield server
    server.close()


@pytest.fixture
def secure_url(secure_fake: FakeKserve, kind: str) -> str:
    return secure_fake.grpc_url if kind.startswith("grpc") else secure_fake.http_url


def test_both_sides_authenticate_each_other(make_client, secure_url, certificate):
    cert, key = certificate
    client = make_client(secure_url, tls=sdk.TlsConfig(ca=cert, cert=cert, key=key))
    assert client.infer("echo", {"x": np.ones(3, np.float32)})["x"].tolist() == [1, 1, 1]


def test_untrusted_server_is_a_failed_connection(make_client, secure_url, tmp_path):
    other, _ = make_certificate(tmp_path)
    with pytest.raises(sdk.ConnectionFailed) as caught:
        make_client(secure_url, tls=sdk.TlsConfig(ca=other)).server_metadata()
    assert caught.value.request_may_have_run is False


@pytest.fixture(scope="module")
def named_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("named"), "DNS:cards.example")


@pytest.fixture(scope="module")
def named_fake(named_certificate: tuple[Path, Path]) -> Iterator[FakeKserve]:
    server = FakeKserve(tls=named_certificate)
    yield server
    server.close()


def test_certificates_may_be_text_and_for_another_name(make_client, kind, named_fake, named_certificate):
    cert, key = named_certificate
    url = named_fake.grpc_url if kind.startswith("grpc") else named_fake.http_url
    tls = sdk.TlsConfig(ca=cert.read_bytes(), cert=cert, key=key)
    with pytest.raises(sdk.StokerError):  # the address is none of the certificate's names
        make_client(url, tls=tls, retry=sdk.RetryPolicy(max_attempts=1)).server_metadata()
    client = make_client(url, tls=dataclasses.replace(tls, server_name="cards.example"))
    assert client.server_metadata()["name"] == "fake"


def test_adlik_context_accepts_certificates_and_a_name(named_certificate):
    server = FakeAdlik(tls=named_certificate)
    trusted = named_certificate[0].read_bytes()
    try:
        with PredictContext("echo", url=server.grpc_url, grpc_domain="cards.example", credentials=trusted) as context:
            assert context.run({"x": np.ones((1, 4), np.float32)})["x"].tensor.tolist() == [[1, 1, 1, 1]]
        with pytest.raises(sdk.StokerError):  # without the name, the certificate is another server's
            PredictContext("echo", url=server.grpc_url, credentials=trusted, retry=sdk.RetryPolicy(max_attempts=1))
    finally:
        server.close()
