"""TLS and mutual TLS on both fronts, judged by tritonclient and curl: eight certificates, rotation under load, hellos that stall."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import stoker_client as sdk
from tests.fakes.certificates import OPENSSL, Authority, Pair, make_self_signed
from tests.fakes.server_process import PATIENCE_S, REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server, wait_until

FOREIGN = Path(__file__).parent / "foreign"
CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make certificates")


class Case(NamedTuple):
    """A client of a server with a valid certificate for `localhost` that requires client certificates."""

    host: str
    ca: Path
    pair: Pair | None
    comes_in: bool


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    return authority.sign("server", names="DNS:localhost")


@pytest.fixture(scope="module")
def cases(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    other = Authority(tmp_path_factory.mktemp("tls") / "other")
    client = authority.sign("client")
    return {
        "right": Case("localhost", authority.cert, client, True),
        "expired": Case("localhost", authority.cert, authority.sign("expired", days=(-3, -1)), False),
        "not yet valid": Case("localhost", authority.cert, authority.sign("early", days=(1, 2)), False),
        "wrong host": Case("127.0.0.1", authority.cert, client, False),
        "wrong authority": Case("localhost", other.cert, client, False),
        "no client certificate": Case("localhost", authority.cert, None, False),
        "wrong client authority": Case("localhost", authority.cert, other.sign("client"), False),
        "self-signed": Case("localhost", authority.cert, make_self_signed(other.folder, "self"), False),
    }


def ssl_config(file: Path, pair: Pair, ca: Path) -> Path:
    """The same in TensorFlow Serving's form."""
    texts = {"server_key": pair.key, "server_cert": pair.cert, "custom_ca": ca}
    lines = [f"{name}: {json.dumps(path.read_text())}" for name, path in texts.items()]
    file.write_text("\n".join([*lines, "client_verify: true", ""]))
    return file


def fronts(grpc_front: str) -> list[str]:
    """The flags of the gRPC transport and of the HTTP server: uvicorn stands beside grpcio."""
    return [f"--grpc-front={grpc_front}", f"--http-front={'uvicorn' if grpc_front == 'grpcio' else 'stoker'}"]


def mutual_flags(port: str, pair: Pair, authority: Authority) -> list[str]:
    files = {"server-cert": pair.cert, "server-key": pair.key, "root-cert": authority.cert}
    return [f"--{port}-use-ssl-mutual", *(f"--{port}-{name}={path}" for name, path in files.items())]


@pytest.fixture(scope="module", params=["h2", "h2-config-file", "grpcio"])
def mutual_server(request, tmp_path_factory, authority: Authority, server_pair: Pair) -> Iterator[ServerProcess]:
    at = tmp_path_factory.mktemp("mutual")
    if request.param == "h2-config-file":
        grpc = [f"--ssl_config_file={ssl_config(at / 'ssl.config', server_pair, authority.cert)}"]
    else:
        grpc = [*mutual_flags("grpc", server_pair, authority), *fronts(request.param)]
    models = copy_models(SAMPLE_MODELS, at / "models", ["simple"])
    flags = [*grpc, *mutual_flags("http", server_pair, authority), "--metrics-port=0", "--metrics-use-ssl"]
    with running_server(f"--model_base_path={models}", *flags, at=at / "run") as running:
        yield running


def in_rows(cases: dict[str, Case]) -> str:
    rows = []
    for name, case in cases.items():
        cert, key = (None, None) if case.pair is None else map(str, case.pair)
        rows.append({"name": name, "host": case.host, "ca": str(case.ca), "cert": cert, "key": key})
    return json.dumps(rows)


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_eight_certificates_are_accepted_or_rejected(kind, mutual_server: ServerProcess, cases, clients_python: Path, tmp_path):
    (tmp_path / "cases").write_text(in_rows(cases))
    port = mutual_server.grpc_port if kind == "grpc" else mutual_server.http_port
    command = [str(clients_python), str(FOREIGN / "tls.py"), kind, str(port), str(tmp_path / "cases")]
    env = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: case.comes_in for name, case in cases.items()}


@pytest.mark.skipif(CURL is None, reason="needs curl")
@pytest.mark.parametrize("port", ["http_port", "metrics_port"])
def test_curl_accepts_and_rejects_the_same_certificates(port, mutual_server: ServerProcess, cases):
    path = "/v2/health/ready" if port == "http_port" else "/metrics"
    found = {}
    for name, case in cases.items():
        pair = [] if case.pair is None else ["--cert", str(case.pair.cert), "--key", str(case.pair.key)]
        address = f"https://{case.host}:{getattr(mutual_server, port)}{path}"
        command = [str(CURL), "-sS", "--ipv4", "--fail", "--max-time", "10", "--cacert", str(case.ca), *pair, address]
        found[name] = subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert found == {name: case.comes_in for name, case in cases.items()}


def test_start_line_lists_the_encrypted_listeners(mutual_server: ServerProcess):
    line = mutual_server.out_path.read_text().splitlines()[-1]
    assert line.count("(mutual TLS)") == 3


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_certificates_rotate_under_load_without_a_failed_call(
    front, authority: Authority, server_pair: Pair, clients_python: Path, tmp_path
):
    pairs = [server_pair, authority.sign("next", names="DNS:localhost")]
    folder = tmp_path / "served"
    folder.mkdir()

    def put(pair: Pair) -> None:
        # One after the other, as certbot and others do: for a moment the two do not belong together.
        for source, name in ((pair.cert, "cert"), (pair.key, "key")):
            shutil.copy(source, folder / "draft")
            (folder / "draft").replace(folder / name)

    def rotate(pair: Pair, server: ServerProcess) -> None:
        put(pair)
        for port in (server.grpc_port, server.http_port):
            wait_until(lambda port=port: served_by(port) == der(pair), what="the certificate")

    put(pairs[0])
    flags = [
        f"--{port}-{name}" for port in ("grpc", "http") for name in ("use-ssl", f"server-cert={folder}/cert", f"server-key={folder}/key")
    ]
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    with running_server(
        f"--model_base_path={models}", *flags, "--ssl-reload-secs=0.1", *fronts(front), "--log-format=text", at=tmp_path / "run"
    ) as server:
        addresses = [f"localhost:{server.grpc_port}", f"localhost:{server.http_port}"]
        command = [str(clients_python), str(FOREIGN / "tls_rotation.py"), *addresses, str(authority.cert)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as load:
            assert load.stdout is not None
            assert load.stderr is not None
            said = []
            for count, line in enumerate(load.stdout):
                said.append(line)
                if count % 8 == 0:
                    rotate(pairs[(count // 8 + 1) % 2], server)
            errors = load.stderr.read()
        assert said[-1] == "0 of 1000 failed\n", errors
        rotate(pairs[1], server)
        assert server.log().count("has a new certificate, valid until") >= 4
        assert server.stop() == 0


def served_by(port: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("localhost", port), timeout=10))


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.cert.read_text())


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_large_tensors_arrive_unchanged_in_both_directions(front, authority: Authority, server_pair: Pair, tmp_path):
    folder = tmp_path / "models" / "echo"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.identity").touch()
    tensors = "".join(f'{kind} [{{ name: "{kind.upper()}" data_type: TYPE_FP32 dims: [-1] }}]\n' for kind in ("input", "output"))
    (folder / "config.pbtxt").write_text(f'backend: "identity"\n{tensors}')
    encrypted = ["use-ssl", f"server-cert={server_pair.cert}", f"server-key={server_pair.key}"]
    flags = [f"--{port}-{name}" for port in ("grpc", "http") for name in encrypted]
    # 12 MB, the last read of which is no whole record.
    values = np.arange(3_000_001, dtype=np.float32)
    with running_server(f"--model_base_path={folder.parent}", *flags, *fronts(front), at=tmp_path / "run") as server:
        for url in (f"grpcs://localhost:{server.grpc_port}", f"https://localhost:{server.http_port}"):
            with sdk.connect(url, tls=sdk.TlsConfig(ca=authority.cert)) as client:
                for _ in range(2):
                    assert np.array_equal(client.infer("echo", {"INPUT": values})["OUTPUT"], values)


def test_stalled_handshakes_delay_no_other_client_and_leak_nothing(authority: Authority, server_pair: Pair, tmp_path):
    encrypted = ["use-ssl", f"server-cert={server_pair.cert}", f"server-key={server_pair.key}"]
    flags = [f"--{port}-{name}" for port in ("grpc", "http") for name in encrypted]
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    with running_server(f"--model_base_path={models}", *flags, at=tmp_path / "run") as server, ExitStack() as stack:
        files = Path(f"/proc/{server.process.pid}/fd")
        context = ssl.create_default_context(cafile=authority.cert)

        def ready() -> bytes:
            plain = socket.create_connection(("localhost", server.http_port), timeout=10)
            with plain, context.wrap_socket(plain, server_hostname="localhost") as encrypted:
                encrypted.sendall(b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return encrypted.recv(64)

        assert ready().startswith(b"HTTP/1.1 200")
        before = len(list(files.iterdir()))
        stalled = []
        for port in (server.grpc_port, server.http_port):
            for _ in range(250):
                stalled.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)))
                stalled[-1].sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        # That of the question above may be among those before, or be gone by now.
        wait_until(lambda: len(list(files.iterdir())) >= before + 499, what="the server to hold the connections", patience_s=3)
        # A handshake that waited for those that stall would take five seconds for each of them; `ready` waits ten.
        assert ready().startswith(b"HTTP/1.1 200")
        # Each waits five seconds at most for its end. One after another, they would take more than the test's time limit.
        for connection in stalled:
            with suppress(ConnectionError):
                assert connection.recv(1) == b""
        wait_until(lambda: len(list(files.iterdir())) <= before, what="the files to be closed")


@pytest.mark.parametrize("port", ["grpc", "http"])
@pytest.mark.parametrize("days", [(-3, -1), (1, 2)], ids=["expired", "not yet valid"])
def test_server_refuses_to_start_with_a_certificate_that_clients_reject(port, days, authority: Authority):
    pair = authority.sign(f"start{days[0]}", days=days)
    flags = [f"--{port}-use-ssl", f"--{port}-server-cert={pair.cert}", f"--{port}-server-key={pair.key}"]
    command = [sys.executable, "-m", "stoker.server.main", f"--model_base_path={SAMPLE_MODELS}", "--grpc_port=0", "--http_port=0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=REPOSITORY_ROOT, check=False)
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith(f"serve: error: {pair.cert}: the certificate {'has expired' if days[0] < 0 else 'is not valid yet'}")
