"""REST routes with FastAPI: each checks its key and its path, then reads a strict JSON body, before FastAPI validates it.

FastAPI's own reader takes bodies of any length, accepts what `codecs.strict_json` rejects, and replaces the text of every error.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import orjson
from fastapi import Depends, HTTPException, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel, BeforeValidator

from stoker.backends.api.errors import InvalidRequest, ServingError, Unsupported
from stoker.server.codecs.strict_json import parse_bounded
from stoker.server.codecs.validation import check_model_name, parse_version
from stoker.server.core.limits import Limits
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.protocols.exchange import Receive, Scope, Send, header_of, read_body, reservation_of
from stoker.server.rpc.restricted import NO_RESTRICTIONS, Category, Restrictions, categories_of_route

JSON_TYPE: Final = "application/json"
COMPONENTS: Final = "#/components/schemas/{model}"
OnRejected = Callable[[Mapping[str, str], ServingError], None]


@dataclass(frozen=True, slots=True)
class RouteContext:
    """The state that the routes of one HTTP port share.

    Attributes:
        engine: Its byte budget bounds the bodies in memory.
        limits: Bounds on what clients send.
        restrictions: The keys that calls require.
        categories: By path, the categories of restricted APIs of routes that `categories_of_route` does not list.
        body_schemas: By name, the schemas of bodies that a codec reads, for the OpenAPI document.
    """

    engine: Engine
    limits: Limits
    restrictions: Restrictions = NO_RESTRICTIONS
    categories: Mapping[str, tuple[Category | None, ...]] = field(default_factory=dict)
    body_schemas: dict[str, Any] = field(default_factory=dict)

    def router(self, *, reads_large_bodies: bool = False, on_rejected: OnRejected | None = None) -> APIRouter:
        """A router whose routes check keys and read strict JSON.

        Args:
            on_rejected: Called with the parameters of the path when a key is missing or wrong.
            reads_large_bodies: Whether bodies may be as long as those of inference requests. They are charged three times: for the text,
                its parsed values, and the endpoint's objects.
        """
        return APIRouter(route_class=_route_class(self, reads_large_bodies, on_rejected), strict_content_type=False)

    def codec_body(self, model: type[BaseModel]) -> dict[str, Any]:
        """The `openapi_extra` of a route whose body a codec reads: FastAPI documents `model` and never sees the body."""
        schema = model.model_json_schema(ref_template=COMPONENTS)
        self.body_schemas.update(schema.pop("$defs", {}))
        return {"requestBody": {"content": {JSON_TYPE: {"schema": schema}}}}

    def require(self, categories: tuple[Category | None, ...], scope: Scope) -> None:
        """Checks the keys of the request of `scope`.

        Raises:
            Unauthenticated, RestrictedCall: a key is missing or wrong.
        """
        for category in categories:
            if self.restrictions.restricts(category):
                self.restrictions.require(category, header_of(scope["headers"]))


def _route_class(context: RouteContext, reads_large_bodies: bool, on_rejected: OnRejected | None) -> type[APIRoute]:
    limits = context.limits

    def require(categories: tuple[Category | None, ...], request: Request) -> None:
        try:
            context.require(categories, request.scope)
        except ServingError as error:
            if on_rejected is not None:
                on_rejected(request.path_params, error)
            raise

    class StrictRoute(APIRoute):
        """A route that checks the key and the path, then reads the body. The order is that of the cost of a rejection."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            categories = context.categories.get(self.path_format) or categories_of_route(self.path_format)
            if self.body_field is None:

                async def respond(request: Request) -> Response:
                    require(categories, request)
                    return await handle(request)

                return respond

            async def respond_to_body(request: Request) -> Response:
                require(categories, request)
                _check_path(request.path_params)
                with reservation_of(context.engine.budget, request.scope) as reservation:
                    most = None if reads_large_bodies else limits.control_bytes
                    body = await read_body(request.receive, dict(request.scope["headers"]), reservation, limits, most)
                    if reads_large_bodies:
                        reservation.take(2 * len(body))
                    is_long = len(body) > limits.decode_inline_bytes
                    given = await run_off_loop(parse_object, body, limits) if is_long else parse_object(body, limits)
                    return await handle(_ParsedRequest(request, given))

            return respond_to_body

    return StrictRoute


class _ParsedRequest(Request):
    """A request whose body is read and parsed, whatever type the client declared: existing clients send none, or that of a form."""

    def __init__(self, request: Request, given: dict[str, Any]) -> None:
        fields = [each for each in request.scope["headers"] if each[0] != b"content-type"]
        super().__init__({**request.scope, "headers": [*fields, (b"content-type", JSON_TYPE.encode())]}, request.receive)
        self._given = given

    async def body(self) -> bytes:
        # FastAPI asks for the parsed body unless this one is empty.
        return b"{}"

    async def json(self) -> Any:
        return self._given


def parse_object(body: bytes, limits: Limits) -> dict[str, Any]:
    """The JSON object that `body` holds; empty where there is no body. Safe in a thread.

    Raises:
        InvalidRequest: it holds something else. TooLarge: as `parse_bounded`.
    """
    given = parse_bounded(body, limits) if body else {}
    if not isinstance(given, dict):
        raise InvalidRequest("the request must be a JSON object")
    return given


def _check_path(path_params: Mapping[str, str]) -> None:
    if "model" in path_params:
        check_model_name(path_params["model"])
        if "repository" in path_params:
            raise Unsupported("'repository_name' specification is not supported")


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a path names, and its version; empty: the version that serves by default."""

    model: str
    version: str = ""

    @property
    def number(self) -> int | None:
        """The version.

        Raises:
            InvalidRequest: no version number has so many digits.
        """
        return parse_version(self.version, self.model)


#: A part of the path, by the name of the parameter.
PathText = Annotated[str, Path()]


async def _nothing() -> str:
    return ""


async def _unchecked(model: PathText) -> Target:
    return Target(model)


async def _any_version(model: PathText, version: PathText) -> Target:
    return Target(model, version)


async def _unchecked_version(model: PathText, version: PathText) -> Target:
    if not (version.isascii() and version.isdigit()):
        raise HTTPException(404)
    return Target(model, version)


async def _checked(target: Annotated[Target, Depends(_unchecked)]) -> Target:
    check_model_name(target.model)
    return target


async def _checked_version(target: Annotated[Target, Depends(_unchecked_version)]) -> Target:
    check_model_name(target.model)
    return target


async def _name(model: PathText) -> str:
    return check_model_name(model)


async def _name_of_version(model: PathText, version: PathText) -> str:
    return check_model_name(model)


# What endpoints take from a path. A path without the part has a `No...` of the same type, so that one endpoint serves both.
NoText = Annotated[str, Depends(_nothing)]
ModelName = Annotated[str, Depends(_name)]
VersionedModelName = Annotated[str, Depends(_name_of_version)]
ModelTarget = Annotated[Target, Depends(_checked)]
VersionTarget = Annotated[Target, Depends(_checked_version)]
#: For endpoints and codecs that check names and versions themselves.
UncheckedTarget = Annotated[Target, Depends(_unchecked)]
UncheckedVersionTarget = Annotated[Target, Depends(_unchecked_version)]
AnyVersionTarget = Annotated[Target, Depends(_any_version)]


#: An ASGI application that serves one request.
Respond = Callable[[Scope, Receive, Send], Awaitable[None]]


class CodecResponse(Response):
    """Runs a codec with the request's own `receive` and `send`: the codec reads the body and sends the response."""

    def __init__(self, respond: Respond) -> None:
        super().__init__()
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._respond(scope, receive, send)


def json_response(value: Any, status: int = 200) -> Response:
    """A response with `value` as its body."""
    return Response(orjson.dumps(value), status, media_type=JSON_TYPE)


class ExactError(ValueError):
    """A violation that a validator of a model finds; its text goes to the client as it is."""


def rejection_of(error: RequestValidationError) -> ServingError:
    """The first violation of a request's model."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ExactError):
        return InvalidRequest(str(cause))
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return InvalidRequest(f"'{where}': {first['msg']}")


def exactly(is_valid: Callable[[Any], bool], text: str) -> BeforeValidator:
    """A validator that rejects what `is_valid` does not accept; `text` goes to the client as it is."""

    def validate(value: Any) -> Any:
        if not is_valid(value):
            raise ExactError(text)
        return value

    return BeforeValidator(validate)
