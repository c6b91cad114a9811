"""The flags of the gRPC transport, from the command line to the server's settings."""

from pathlib import Path

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import read_command
from stoker.server.rpc.settings import GrpcSettings, Transport
from stoker.server.server_config import ServerConfig


def parsed(*words: str) -> GrpcSettings:
    config = read_command([*words, f"--model_base_path={Path.cwd()}"], {})
    assert isinstance(config, ServerConfig)
    return config.grpc


def test_native_transport_is_the_default_with_default_settings():
    assert parsed() == GrpcSettings() == GrpcSettings(transport=Transport.H2)


def test_tritons_milliseconds_become_seconds():
    given = parsed(
        "--grpc_front=grpcio",
        "--grpc-keepalive-time=1500",
        "--grpc-keepalive-timeout=250",
        "--grpc-http2-min-recv-ping-interval-without-data=0",
        "--grpc-http2-max-ping-strikes=7",
        "--grpc-max-connection-idle=7000",
        "--grpc-max-connection-age=60000",
        "--grpc-max-connection-age-grace=0",
    )
    assert given == GrpcSettings(
        transport=Transport.GRPCIO,
        keepalive_time_s=1.5,
        keepalive_timeout_s=0.25,
        min_ping_interval_s=0.0,
        max_ping_strikes=7,
        max_connection_idle_s=7.0,
        max_connection_age_s=60.0,
        max_connection_age_grace_s=0.0,
    )


def test_connections_without_a_call_are_kept_forever_if_configured():
    assert parsed("--grpc-max-connection-idle=0") == GrpcSettings(max_connection_idle_s=None)


def test_unknown_transport_is_named():
    with pytest.raises(FlagError, match="h2 or grpcio"):
        parsed("--grpc-front=http3")
