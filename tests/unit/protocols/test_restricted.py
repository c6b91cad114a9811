"""Restricted APIs: every route and every RPC, in any spelling, needs its key. The lists are those of the route tables."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.api.errors import RestrictedCall, ServingError, Unauthenticated
from stoker.server.core.flag import FlagError
from stoker.server.core.limits import Limits
from stoker.server.flags.command import read_command
from stoker.server.grpc_server import grpc_methods
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.services import Services
from stoker.server.protocols.settings import AdlikSettings, KServeSettings
from stoker.server.rpc.method import Kind, Method
from stoker.server.rpc.restricted import Category, Key, Restrictions, categories_of_route, category_below_v1, category_of_method
from stoker.server.server_config import ServerConfig
from stoker.server.web.http_server import http_server
from tests.fakes.declared_routes import console_feed
from tests.fakes.declared_routes import declared_routes as routes_of_port
from tests.fakes.fake_engine import FakeEngine, simple

LIMITS = Limits()
ALL = dict.fromkeys(Category, Key("admin-key", "s3cret"))
OPEN = {"/", "/docs", "/openapi.json"}
PATH_VALUES = {"model": "simple", "version": "1", "region": "r", "repository": "mine", "label": "stable"}


def engine() -> FakeEngine:
    return FakeEngine(simple())


def declared_routes() -> Iterator[tuple[str, str]]:
    """Method and path of every route of the HTTP port, as declared."""
    for method, path in routes_of_port(engine()):
        if path not in OPEN:
            yield method, path


@functools.cache
def paths() -> tuple[tuple[str, str], ...]:
    return tuple((method, path.format(**PATH_VALUES)) for method, path in declared_routes())


def spellings(method: str, path: str) -> Iterator[tuple[str, str]]:
    """Other ways to write the same request."""
    yield method, f"http://127.0.0.1{path}"
    yield method, f"{path}?x=1"
    yield method, f"{path}/"
    yield method, f"/{path}"
    yield method, f"/.{path}"
    yield method, f"/x/..{path}"
    yield method, f"/%2e{path}"
    yield method, path.replace("/v", "/%76", 1)
    yield method, path.replace("models", "%6dodels")
    yield method, path.replace(":", "%3A")
    yield method, path.replace("/", "%2f")
    yield method, path.upper()
    yield method, f"{path};x=1"
    for other in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"):
        yield other, path


async def statuses(port: int, requests: Sequence[tuple[str, str]], header: str) -> list[int]:
    """The status of each request, each on a connection of its own."""
    found = []
    for method, target in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b"{}" if method in ("POST", "PUT", "PATCH") else b""
        head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n{header}\r\n"
        writer.write(head.encode() + body)
        response = await reader.read(1 << 16)
        found.append(int(response.split(b" ", 2)[1]))
        writer.close()
        await writer.wait_closed()
    return found


def over_http(keys: dict[Category, Key], scenario: Callable[[int], Awaitable[None]], api_key: str | None = None) -> FakeEngine:
    of = engine()

    async def main() -> None:
        extensions = Extensions(LIMITS, KServeSettings(http_restricted=keys), api_key=api_key)
        front = http_server(Services(of, LIMITS, extensions=extensions), "127.0.0.1", 0, feed=console_feed(of))
        port = await front.start()
        try:
            async with asyncio.timeout(60):
                await scenario(port)
        finally:
            await front.stop(1)

    asyncio.run(main())
    return of


@pytest.mark.parametrize("header", ["", "admin-key: wrong\r\n", "admin-key:\r\n", "other: s3cret\r\n", "x-http-method-override: GET\r\n"])
def test_every_route_needs_its_key(header: str):
    async def scenario(port: int) -> None:
        found = dict(zip(paths(), await statuses(port, paths(), header), strict=True))
        assert set(found.values()) == {403}, {route: status for route, status in found.items() if status != 403}

    touched = over_http(ALL, scenario)
    assert [touched.requests, touched.loads, touched.unloads] == [[], [], []]


@pytest.mark.slow
def test_other_spellings_of_a_path_need_the_key_too():
    ways = [way for method, path in paths() for way in spellings(method, path)]

    async def scenario(port: int) -> None:
        found = await statuses(port, ways, "")
        passed = [(way, status) for way, status in zip(ways, found, strict=True) if status not in (400, 403, 404, 405)]
        assert not passed

    touched = over_http(ALL, scenario)
    assert [touched.requests, touched.loads, touched.unloads] == [[], [], []]


def test_every_route_is_unchanged_with_its_key():
    async def scenario(port: int) -> None:
        for header in ("admin-key: s3cret\r\n", "ADMIN-KEY: s3cret\r\n"):
            assert 403 not in await statuses(port, paths(), header)

    over_http(ALL, scenario)


@pytest.mark.parametrize("category", list(Category))
def test_one_restricted_category_closes_only_its_routes(category: Category):
    async def scenario(port: int) -> None:
        routes = list(declared_routes())
        found = await statuses(port, [(method, path.format(**PATH_VALUES)) for method, path in routes], "")
        closed = {path for (_, path), status in zip(routes, found, strict=True) if status == 403}
        assert closed == {path for _, path in routes if category in categories_of_route(path)}
        assert closed

    over_http({category: Key("k", "v")}, scenario)


def test_page_of_all_models_needs_the_keys_of_both_its_categories():
    keys = {Category.METADATA: Key("reader", "a"), Category.MODEL_REPOSITORY: Key("admin", "b")}

    async def scenario(port: int) -> None:
        for header, status in (("reader: a\r\n", 403), ("admin: b\r\n", 403), ("reader: a\r\nadmin: b\r\n", 200)):
            assert await statuses(port, [("GET", "/models")], header) == [status]

    over_http(keys, scenario)


def test_refusal_has_tritons_text():
    key = {Category.HEALTH: Key("admin-key", "s3cret")}
    for restrictions, text in (
        (Restrictions(key), "This API is restricted, expecting header 'admin-key'"),
        (Restrictions(key, what="protocol"), "This protocol is restricted, expecting header 'admin-key'"),
    ):
        with pytest.raises(RestrictedCall) as refused:
            restrictions.require(Category.HEALTH, lambda _: None)
        assert refused.value.message == text
        restrictions.require(Category.HEALTH, {"admin-key": "s3cret"}.get)
        restrictions.require(Category.METADATA, lambda _: None)
    assert "s3cret" not in repr(key)


class FakeCall:
    """A call with metadata, from a client that sends no message."""

    deadline_ns = None

    def __init__(self, **metadata: str) -> None:
        self.metadata = {name.replace("_", "-"): value for name, value in metadata.items()}

    async def receive(self) -> bytes | None:
        return None


def rpcs(keys: dict[Category, Key], api_key: str | None = None) -> Any:
    of = engine()
    adlik = AdlikService(of, LIMITS, AdlikSettings())
    extensions = Extensions(LIMITS, KServeSettings(grpc_restricted=keys), api_key=api_key)
    return grpc_methods(Services(of, LIMITS, adlik=adlik, extensions=extensions), reflection=True)


async def run(method: Any, call: FakeCall) -> None:
    if method.kind is Kind.UNARY:
        await method.start(b"", call).outcome()
    elif method.kind is Kind.BIDI:
        await method.handle(call)


@pytest.mark.parametrize("call", [FakeCall(), FakeCall(admin_key="wrong"), FakeCall(other="s3cret")], ids=["none", "wrong", "other"])
def test_every_rpc_needs_its_key(call: FakeCall):
    for method in rpcs(ALL).values():

        async def act(method: Any = method) -> None:
            if method.kind is Kind.UNARY:
                await method.start(b"", call).outcome()
            else:
                await method.handle(call)

        with pytest.raises(RestrictedCall, match="This protocol is restricted, expecting header 'admin-key'"):
            asyncio.run(act())
        assert method.status(RestrictedCall("x")).grpc in (7, 14)


def test_rpcs_are_unchanged_with_their_key():
    for method in rpcs(ALL).values():
        # Many want more than an empty message, and say so.
        try:
            asyncio.run(run(method, FakeCall(admin_key="s3cret")))
        except RestrictedCall:
            pytest.fail(method.path)
        except ServingError:
            continue


def test_every_entry_point_of_a_restricted_rpc_checks_the_key():
    methods = rpcs(ALL).values()
    starts = [method.start for method in methods if method.start is not None]
    assert len(starts) >= 20
    for start in starts:
        with pytest.raises(RestrictedCall, match="This protocol is restricted"):
            start(b"", FakeCall())
    begins = [method.begin for method in methods if method.begin is not None]
    assert len(begins) == 1
    for begin in begins:
        with pytest.raises(RestrictedCall, match="This protocol is restricted"):
            begin(FakeCall())
    for method in methods:
        assert method.require is not None
        with pytest.raises(RestrictedCall, match="This protocol is restricted"):
            method.require(FakeCall().metadata.get)
    # Whatever else a method may come to offer beside its body must be looked at here; `failed` receives errors only.
    looked_at = {"path", "kind", "start", "handle", "begin", "status", "most_bytes", "lead_bytes", "failed", "require"}
    assert {field.name for field in fields(Method)} == looked_at


def body(method: Any) -> Any:
    return method.start or method.handle


def test_unrestricted_methods_are_not_wrapped():
    methods = rpcs({Category.HEALTH: Key("k", "v")})
    # Compiled functions may have no `__module__`; a wrapper is interpreted.
    wrapped = {path for path, method in methods.items() if getattr(body(method), "__module__", None) == Restrictions.__module__}
    assert wrapped == {path for path in methods if category_of_method(path) is Category.HEALTH}


def test_route_without_a_category_cannot_be_served():
    with pytest.raises(LookupError, match=r"/a\.B/C has no category"):
        category_of_method("/a.B/C")
    with pytest.raises(LookupError, match="/v2/secret has no category"):
        categories_of_route("/v2/secret")


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/v1/models/m:predict", Category.INFERENCE),
        ("/V1/Models/m/versions/1:Classify", Category.INFERENCE),
        ("/v1/models/m/metadata", Category.METADATA),
        ("/v1/models/m/labels/stable", Category.HEALTH),
        ("/v1/models", Category.METADATA),
        ("/v1/embeddings", Category.INFERENCE),
        ("/v1/completions", Category.INFERENCE),
        ("/v1/chat/completions/", Category.INFERENCE),
    ],
)
def test_verb_determines_the_category_below_v1(path: str, category: Category):
    assert category_below_v1(path) is category


def parsed(*words: str) -> KServeSettings:
    config = read_command(["--model_base_path=/models", *words], {})
    assert isinstance(config, ServerConfig)
    return config.kserve


def test_flags_have_tritons_form():
    settings = parsed(
        "--http-restricted-api=inference,health:Infer-Key=a=b",
        "--http-restricted-api=logging:log-key=c",
        "--grpc-restricted-protocol=model-repository:admin-key=d",
    )
    assert settings.http_restricted == {
        Category.INFERENCE: Key("infer-key", "a=b"),
        Category.HEALTH: Key("infer-key", "a=b"),
        Category.LOGGING: Key("log-key", "c"),
    }
    assert settings.grpc_restricted == {Category.MODEL_REPOSITORY: Key("triton-grpc-protocol-admin-key", "d")}


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--http-restricted-api=model-reposit,health:k=v", "unknown restricted api 'model-reposit'"),
        ("--grpc-restricted-protocol=model-reposit:k=v", "unknown restricted protocol 'model-reposit'"),
        ("--http-restricted-api=health,health:k=v", "restricted api 'health' can not be specified in multiple config groups"),
        ("--http-restricted-api=health", "--http-restricted-api=health: expected <api>[,<api>...]:<key>=<value>"),
        ("--http-restricted-api=health:s3cret", "--http-restricted-api=health...: expected <api>[,<api>...]:<key>=<value>"),
        ("--http-restricted-api=health=s3cret", "--http-restricted-api=health...: expected <api>"),
        ("--http-restricted-api=health:k=", "expected <api>"),
        ("--http-restricted-api=health:a b=v", "a key's name is made of letters"),
    ],
)
def test_another_form_is_refused_without_the_keys(flag: str, text: str):
    with pytest.raises(FlagError) as refused:
        parsed(flag)
    assert text in str(refused.value)
    assert "s3cret" not in str(refused.value)


BEARERS = ["", "authorization: Bearer wrong\r\n", "authorization: s3cret\r\n", "authorization: Basic s3cret\r\n", "api-key: s3cret\r\n"]


@pytest.mark.parametrize("header", BEARERS)
def test_only_health_routes_respond_without_the_api_key(header: str):
    async def scenario(port: int) -> None:
        asked = [*declared_routes(), *(("GET", path) for path in sorted(OPEN))]
        found = await statuses(port, [(method, path.format(**PATH_VALUES)) for method, path in asked], header)
        refused = {path for (_, path), status in zip(asked, found, strict=True) if status == 401}
        health = {path for _, path in asked if path not in OPEN and categories_of_route(path) == (Category.HEALTH,)}
        assert refused == {path for _, path in asked} - health
        assert "/v2/health/live" in health

    touched = over_http({}, scenario, api_key="s3cret")
    assert [touched.requests, touched.loads, touched.unloads] == [[], [], []]


@pytest.mark.slow
def test_other_spellings_of_a_path_need_the_api_key_too():
    is_health = {path: Category.HEALTH in categories_of_route(path) for _, path in declared_routes()}
    closed = [(method, path.format(**PATH_VALUES)) for method, path in declared_routes() if not is_health[path]]
    ways = [way for method, path in closed for way in spellings(method, path)]

    async def scenario(port: int) -> None:
        found = await statuses(port, ways, "")
        passed = [(way, status) for way, status in zip(ways, found, strict=True) if status not in (400, 401, 404, 405)]
        assert not passed

    touched = over_http({}, scenario, api_key="s3cret")
    assert [touched.requests, touched.loads, touched.unloads] == [[], [], []]


def test_every_route_is_unchanged_with_the_api_key():
    async def scenario(port: int) -> None:
        for header in ("authorization: Bearer s3cret\r\n", "Authorization: bearer s3cret\r\n"):
            assert 401 not in await statuses(port, paths(), header)

    over_http({}, scenario, api_key="s3cret")


def test_refusal_names_the_scheme():
    async def scenario(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head, _, body = (await reader.read(1 << 16)).partition(b"\r\n\r\n")
        assert b"www-authenticate: Bearer" in head.split(b"\r\n")
        assert b"send it as 'Authorization: Bearer KEY'" in body
        writer.close()
        await writer.wait_closed()

    over_http({}, scenario, api_key="s3cret")


@pytest.mark.parametrize(
    "call",
    [FakeCall(), FakeCall(authorization="Bearer wrong"), FakeCall(authorization="s3cret"), FakeCall(other="Bearer s3cret")],
    ids=["none", "wrong", "no scheme", "other"],
)
def test_only_health_rpcs_run_without_the_api_key(call: FakeCall):
    refused = set()
    methods = rpcs({}, "s3cret")
    for method in methods.values():
        try:
            asyncio.run(run(method, call))
        except ServingError as error:
            if isinstance(error, Unauthenticated) and method.status(error).grpc == 16:
                refused.add(method.path)
    assert refused == {path for path in methods if category_of_method(path) is not Category.HEALTH}


def test_rpcs_are_unchanged_with_the_api_key():
    for method in rpcs({}, "s3cret").values():
        try:
            asyncio.run(run(method, FakeCall(authorization="Bearer s3cret")))
        except Unauthenticated:
            pytest.fail(method.path)
        except ServingError:
            continue


def test_restricted_category_needs_its_key_beside_the_api_key():
    restrictions = Restrictions({Category.HEALTH: Key("k", "v"), Category.TRACE: Key("k", "v")}, api_key="s3cret")
    restrictions.require(Category.HEALTH, {"k": "v"}.get)
    restrictions.require(Category.TRACE, {"k": "v", "authorization": "Bearer s3cret"}.get)
    with pytest.raises(Unauthenticated):
        restrictions.require(Category.TRACE, {"k": "v"}.get)
    with pytest.raises(RestrictedCall):
        restrictions.require(Category.TRACE, {"authorization": "Bearer s3cret"}.get)


def test_routes_are_found_without_a_list():
    # What it holds of paths are values for their parameters: new routes are tested as soon as they are declared.
    assert len(paths()) > 40
    assert not [path for _, path in paths() if "{" in path], Path(__file__).name
