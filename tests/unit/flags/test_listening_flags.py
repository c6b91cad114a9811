"""Flags of TLS, Unix-domain sockets and CORS, from the command line to the server's settings."""

from pathlib import Path

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import read_command
from stoker.server.flags.network import read_ssl_config
from stoker.server.net.settings import PemFiles, SslConfigFile, TlsSettings
from stoker.server.server_config import ServerConfig


def parsed(*words: str) -> ServerConfig:
    config = read_command(["--model_base_path=x", *words], {})
    assert isinstance(config, ServerConfig)
    return config


def refusal(*words: str) -> str:
    with pytest.raises(FlagError) as caught:
        parsed(*words)
    return str(caught.value)


def test_default_listeners_are_plain_tcp_ports():
    config = parsed()
    assert config.tls == TlsSettings()
    assert (config.sockets.grpc, config.sockets.http, config.sockets.allow_tcp) == (None, None, True)
    assert not config.cors.origins


def test_tritons_flags_encrypt_the_grpc_port():
    files = ["--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r"]
    # As there, a root certificate without the mutual form has no effect, and the mutual form is enough by itself.
    assert parsed("--grpc-use-ssl=1", *files).tls.grpc == PemFiles(cert=Path("c"), key=Path("k"))
    assert parsed("--grpc-use-ssl-mutual=true", *files).tls.grpc == PemFiles(cert=Path("c"), key=Path("k"), client_ca=Path("r"))


def test_same_flags_encrypt_http_and_metrics():
    tls = parsed("--http-use-ssl", "--http-server-cert=c", "--http-server-key=k", "--metrics-use-ssl", "--ssl-reload-secs=1").tls
    assert tls == TlsSettings(http=PemFiles(cert=Path("c"), key=Path("k")), has_metrics=True, reload_s=1.0)


def test_tensorflow_servings_file_encrypts_the_grpc_port():
    assert parsed("--ssl_config_file=f").tls.grpc == SslConfigFile(Path("f"), read_ssl_config)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--grpc-server-cert=c"], "--grpc-server-cert has no effect without --grpc-use-ssl: the port would be plain"),
        (["--http-root-cert=c"], "--http-root-cert has no effect without --http-use-ssl: the port would be plain"),
        (["--grpc-use-ssl"], "--grpc-use-ssl needs --grpc-server-cert"),
        (["--http-use-ssl", "--http-server-cert=c"], "--http-use-ssl needs --http-server-key"),
        (
            ["--http-use-ssl-mutual", "--http-server-cert=c", "--http-server-key=k"],
            "--http-use-ssl-mutual needs --http-root-cert: the certificates that sign clients' ones",
        ),
        (["--metrics-use-ssl"], "--metrics-use-ssl encrypts the metrics port as the HTTP port is: it needs --http-use-ssl"),
        (["--socket-mode=77"], "--socket-mode=77: expected permission bits in octal from 0600 to 0777, such as 0660"),
        (["--socket-mode=rw"], "--socket-mode=rw: expected permission bits in octal from 0600 to 0777, such as 0660"),
        (["--allow-grpc=0", "--grpc-socket-path=s"], "--grpc-socket-path has no effect with --allow-grpc=false"),
        (["--allow-tcp=0", "--http-socket-path=s"], "--allow-tcp=false leaves grpc nowhere to listen"),
        (["--http-cors-allow-origin=app.example"], "--http-cors-allow-origin=app.example: expected an origin such as"),
        (["--http-cors-allow-origin=d,c,b,a,e"], "--http-cors-allow-origin=a: expected an origin such as"),
        (["--http-cors-allow-origin=https://a/b"], "--http-cors-allow-origin=https://a/b: expected an origin such as"),
        (["--http-cors-allow-origin=*,https://a"], "--http-cors-allow-origin: * allows every origin"),
    ],
)
def test_contradicting_or_ineffective_flags_are_refused(flags, text):
    assert refusal(*flags).startswith(text)


def test_sockets_are_used_beside_the_ports_or_alone():
    config = parsed("--grpc_socket_path=/run/g", "--http_socket_path=/run/h", "--socket-mode=0660", "--allow-tcp=false")
    assert (config.sockets.grpc, config.sockets.http, config.sockets.mode) == (Path("/run/g"), Path("/run/h"), 0o660)
    assert not config.sockets.allow_tcp
    assert "both" not in refusal("--grpc-socket-path=s", "--http-socket-path=s")
    assert "are the same" in refusal("--grpc-socket-path=s", "--http-socket-path=s")
    both = ["--allow-tcp=0", "--grpc-socket-path=g", "--http-socket-path=h"]
    assert "--metrics-port is a TCP port" in refusal(*both, "--metrics-port=1")
    assert "opens no port that TLS could encrypt" in refusal(*both, "--ssl-config-file=f")
    # TensorFlow Serving's default.
    assert parsed("--grpc_socket_path=").sockets.grpc is None


def test_origins_are_separated_by_commas_or_repeated():
    config = parsed("--http-cors-allow-origin=https://A.example, http://localhost:3000", "--http-cors-allow-origin=http://[::1]:80")
    assert config.cors.origins == {"https://a.example", "http://localhost:3000", "http://[::1]:80"}
    assert parsed("--rest_api_enable_cors_support").cors.is_any
