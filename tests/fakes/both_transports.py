"""Runs every test of a module on each gRPC transport: import `transport` and pass `settings()` to the server."""

from collections.abc import Iterator

import pytest

from stoker.server.rpc.settings import GrpcSettings, Transport

_chosen = Transport.H2


@pytest.fixture(autouse=True, params=list(Transport), ids=lambda transport: transport.value)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """The transport that `settings` names during the test."""
    global _chosen
    before, _chosen = _chosen, request.param
    yield request.param
    _chosen = before


def settings() -> GrpcSettings:
    """Settings with the transport of the running test."""
    return GrpcSettings(transport=_chosen)
