"""Permission to change log and trace settings, over both protocols."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.backends.api.errors import Forbidden
from stoker.server.core.limits import Limits
from stoker.server.frontend_set import is_local_only
from stoker.server.observability.tracer import Tracer
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.protocols.services import Services
from stoker.server.protocols.settings import KServeSettings, TraceStart
from stoker.server.rpc.restricted import Category, Key
from stoker.server.server_config import ServerConfig
from stoker.server.web.http_server import http_server
from tests.fakes.fake_engine import FakeEngine, simple
from tests.unit.protocols.test_log_settings import FakeLogs

LIMITS = Limits()
KEY = Key("admin", "secret")
BOTH = {Category.LOGGING: KEY, Category.TRACE: KEY}


def extensions(tmp_path: Path, *, is_local: bool = False, api_key: str | None = None, **settings: Any) -> Extensions:
    tracer = Tracer(tmp_path / "traces", lambda: 0)
    made = KServeSettings(trace=TraceStart(file=tmp_path / "traces"), **settings)
    return Extensions(LIMITS, made, FakeLogs(), tracer, lambda _: True, api_key, is_local=is_local)


async def over_http(shared: Extensions, headers: dict[str, str] | None = None) -> list[int]:
    """The status of reading log and trace settings, and of changing each."""
    front = http_server(Services(FakeEngine(simple()), LIMITS, extensions=shared), "127.0.0.1", 0)
    port = await front.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            return [
                (await client.get("/v2/logging")).status_code,
                (await client.get("/v2/trace/setting")).status_code,
                (await client.post("/v2/logging", json={"log_error": False})).status_code,
                (await client.post("/v2/trace/setting", json={"trace_rate": "5"})).status_code,
                (await client.post("/v2/models/simple/trace/setting", json={"trace_rate": "5"})).status_code,
            ]
    finally:
        await front.stop(1)


@pytest.mark.parametrize(
    ("options", "headers", "change"),
    [
        ({}, {}, 403),
        ({"is_local": True}, {}, 200),
        ({"allow_settings_changes": True}, {}, 200),
        ({"allow_settings_changes": False, "is_local": True}, {}, 403),
        ({"http_restricted": BOTH}, {"admin": "secret"}, 200),
        ({"http_restricted": BOTH, "allow_settings_changes": False}, {"admin": "secret"}, 403),
        ({"grpc_restricted": BOTH}, {}, 403),
        ({"api_key": "k"}, {"authorization": "Bearer k"}, 200),
    ],
)
def test_settings_over_http_are_readable_by_all_and_changeable_by_some(
    options: dict[str, Any], headers: dict[str, str], change: int, tmp_path: Path
):
    shared = extensions(tmp_path, **options)
    assert asyncio.run(over_http(shared, headers)) == [200, 200, change, change, change]
    assert shared.logs is not None
    assert shared.logs.read()["log_error"] is (change == 403)


@pytest.mark.parametrize(
    ("options", "is_allowed"),
    [({}, False), ({"is_local": True}, True), ({"allow_settings_changes": True}, True), ({"grpc_restricted": BOTH}, True)],
)
def test_settings_over_grpc_are_readable_by_all_and_changeable_by_some(options: dict[str, Any], is_allowed: bool, tmp_path: Path):
    service = KServeService(FakeEngine(simple()), LIMITS, extensions(tmp_path, **options))
    log, trace = pb.LogSettingsRequest(), pb.TraceSettingRequest()
    call: Any = None
    assert asyncio.run(service.log_settings(log, call)).settings["log_error"].bool_param
    assert asyncio.run(service.trace_setting(trace, call)).settings["trace_rate"].value
    log.settings["log_error"].bool_param = False
    trace.settings["trace_rate"].value.append("5")
    for work in (service.log_settings(log, call), service.trace_setting(trace, call)):
        if is_allowed:
            asyncio.run(work)
        else:
            with pytest.raises(Forbidden, match=r"clients may not change the (logging|trace) settings of this server"):
                asyncio.run(work)


@pytest.mark.parametrize(
    ("options", "is_warned_of"),
    [
        ({"allow_settings_changes": True}, True),
        ({"allow_settings_changes": True, "is_local": True}, False),
        ({"allow_settings_changes": True, "http_restricted": BOTH}, True),
        ({"allow_settings_changes": True, "api_key": "k"}, False),
        ({}, False),
    ],
)
def test_start_reports_settings_that_every_client_can_change(
    options: dict[str, Any], is_warned_of: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        extensions(tmp_path, **options)
    text = "--allow-settings-changes: any client that reaches this server may change its logging and trace settings"
    assert (text in caplog.messages) is is_warned_of


@pytest.mark.parametrize(
    ("options", "is_local"),
    [
        ({}, True),
        ({"http_address": "0.0.0.0"}, False),
        ({"grpc_address": "192.0.2.1"}, False),
        ({"grpc_address": "192.0.2.1", "grpc_port": None}, True),
        ({"http_address": "::1", "grpc_address": "localhost"}, True),
    ],
)
def test_server_is_local_if_all_its_addresses_are(options: dict[str, Any], is_local: bool):
    assert is_local_only(ServerConfig(repositories=(), **options)) is is_local
