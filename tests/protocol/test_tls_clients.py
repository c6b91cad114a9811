"""Foreign peers over mutual TLS: each brings TLS code of its own, and HTTP/2 ones agree on h2 by ALPN."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.certificates import OPENSSL, Authority, Pair
from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make certificates")
PERF_ANALYZER = REPOSITORY_ROOT / "scripts" / "perf_analyzer"
NODE_MODULES = REPOSITORY_ROOT / ".node-client" / "node_modules"
LIVE = "inference.GRPCInferenceService/ServerLive"
GRPC_HEADERS = ("-H", "content-type: application/grpc", "-H", "te: trailers")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Pair:
    return authority.sign("client")


def flags_of(port: str, pair: Pair, *more: str) -> list[str]:
    return [f"--{port}-use-ssl", f"--{port}-server-cert={pair.cert}", f"--{port}-server-key={pair.key}", *more]


def served(at: Path, authority: Authority, front: str, *, is_mutual: bool) -> Iterator[ServerProcess]:
    pair = authority.sign(f"server-{front}-{is_mutual}")
    flags = [f"--grpc-front={front}"]
    for port in ("grpc", "http"):
        flags += flags_of(port, pair, *([f"--{port}-use-ssl-mutual", f"--{port}-root-cert={authority.cert}"] if is_mutual else []))
    models = copy_models(SAMPLE_MODELS, at / "models", ["simple"])
    with running_server(f"--model_base_path={models}", *flags, at=at / "run") as running:
        yield running


@pytest.fixture(scope="module", params=["h2", "grpcio"])
def mutual_server(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Requires client certificates."""
    yield from served(tmp_path_factory.mktemp("mutual"), authority, request.param, is_mutual=True)


@pytest.fixture(scope="module", params=["h2", "grpcio"])
def encrypted_server(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Has a certificate and requires none: h2load has no flag for its own."""
    yield from served(tmp_path_factory.mktemp("encrypted"), authority, request.param, is_mutual=False)


def run(*command: str | Path, **more: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=100, check=False, env={**os.environ, **more})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.skipif(not (REPOSITORY_ROOT / ".perf_analyzer").exists(), reason="perf_analyzer is not here: run 'make perf-analyzer'")
@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_perf_analyzer_connects_over_tls(kind: str, mutual_server: ServerProcess, authority: Authority, client: Pair):
    of_grpc = {
        "root-certifications-file": authority.cert,
        "private-key-file": client.key,
        "certificate-chain-file": client.cert,
    }
    of_http = {
        "verify-peer": "1",
        "verify-host": "2",
        "ca-certificates-file": authority.cert,
        "client-certificate-file": client.cert,
        "private-key-file": client.key,
    }
    if kind == "grpc":
        flags = [
            "-i",
            "grpc",
            "--ssl-grpc-use-ssl",
            "-u",
            f"localhost:{mutual_server.grpc_port}",
            *(f"--ssl-grpc-{name}={value}" for name, value in of_grpc.items()),
        ]
    else:
        flags = ["-u", f"https://localhost:{mutual_server.http_port}", *(f"--ssl-https-{name}={value}" for name, value in of_http.items())]
    shown = run(sys.executable, PERF_ANALYZER, "-m", "simple", "--request-count", "100", *flags)
    assert re.search(r"Successful request count: (9\d|100)\n", shown), shown


@pytest.mark.skipif(
    shutil.which("node") is None or not NODE_MODULES.exists(), reason="node or its client is missing: run 'make node-client'"
)
def test_grpc_js_connects_over_tls(mutual_server: ServerProcess, authority: Authority, client: Pair):
    script = Path(__file__).parent / "foreign_node" / "live_over_tls.js"
    address = f"localhost:{mutual_server.grpc_port}"
    shown = run("node", script, address, REPOSITORY_ROOT / "proto", authority.cert, client.key, client.cert, NODE_PATH=str(NODE_MODULES))
    assert shown.split() == ["live", "refused"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_negotiates_http_2_by_alpn(mutual_server: ServerProcess, authority: Authority, client: Pair, tmp_path: Path):
    (tmp_path / "request").write_bytes(bytes(5))
    tls = ("--cacert", authority.cert, "--cert", client.cert, "--key", client.key)
    sent = ("--http2", "--dump-header", "-", "-o", tmp_path / "answer", *GRPC_HEADERS, "--data-binary", f"@{tmp_path / 'request'}")
    shown = run("curl", "-sS", *tls, *sent, f"https://localhost:{mutual_server.grpc_port}/{LIVE}")
    assert shown.startswith("HTTP/2 200")
    assert "grpc-status: 0" in shown
    assert pb.ServerLiveResponse.FromString((tmp_path / "answer").read_bytes()[5:]).live


@pytest.mark.skipif(shutil.which("nghttp") is None, reason="nghttp is not installed")
def test_nghttp_connects_over_tls(mutual_server: ServerProcess, client: Pair, tmp_path: Path):
    (tmp_path / "request").write_bytes(bytes(5))
    url = f"https://localhost:{mutual_server.grpc_port}/{LIVE}"
    tls = ("-y", f"--cert={client.cert}", f"--key={client.key}")
    shown = run("nghttp", "-v", "-n", *tls, *GRPC_HEADERS, "-d", tmp_path / "request", url)
    assert "The negotiated protocol: h2" in shown
    assert "grpc-status: 0" in shown


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_h2load_connects_over_tls(encrypted_server: ServerProcess, tmp_path: Path):
    (tmp_path / "request").write_bytes(bytes(5))
    url = f"https://localhost:{encrypted_server.grpc_port}/{LIVE}"
    shown = run("h2load", "-n", "2000", "-c", "10", "-m", "20", *GRPC_HEADERS, "-d", tmp_path / "request", url)
    assert "2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout" in shown
    assert "Application protocol: h2" in shown
