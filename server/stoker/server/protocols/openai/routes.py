"""OpenAI's routes below /v1. TensorFlow Serving's and Adlik's are beside them; only GET /v1/models/{model} belongs to two protocols."""

from typing import Any, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel

from stoker.backends.api.errors import ServingError
from stoker.server.net.http1.response import HeaderList
from stoker.server.protocols.openai import schemas
from stoker.server.protocols.openai.errors import FieldError, UnknownPath, error_response
from stoker.server.protocols.openai.service import OpenAiService
from stoker.server.protocols.routing import CodecResponse, Respond, RouteContext

_POSTED: Final = ("/v1/embeddings", "/v1/completions", "/v1/chat/completions")
#: First parts of OpenAI's paths that this server does not serve.
_UNSERVED: Final = frozenset(
    {
        "assistants", "audio", "batches", "chat", "containers", "conversations", "edits", "embeddings", "completions", "evals", "files",
        "fine_tuning", "images", "moderations", "organization", "realtime", "responses", "threads", "uploads", "vector_stores", "videos",
    }
)  # fmt: skip


def openai_router(context: RouteContext, service: OpenAiService) -> APIRouter:
    """The routes of OpenAI's API."""
    router = context.router()
    failures: dict[int | str, dict[str, Any]] = {"default": {"model": schemas.OpenAiError, "description": "Failure"}}

    def add(method: str, path: str, summary: str, respond: Respond, response: type[BaseModel], body: type[BaseModel] | None = None) -> None:
        async def respond_by_codec() -> Response:
            return CodecResponse(respond)

        router.add_api_route(
            path,
            respond_by_codec,
            methods=[method],
            tags=["OpenAI"],
            summary=summary,
            responses={**failures, 200: {"model": response}},
            openapi_extra=None if body is None else context.codec_body(body),
            name=f"{method} {path}",
        )

    add("POST", _POSTED[0], "Embeddings", service.embeddings, schemas.EmbeddingsResponse, schemas.EmbeddingsRequest)
    add("POST", _POSTED[1], "Completions", service.completions, schemas.TextResponse, schemas.CompletionsRequest)
    add("POST", _POSTED[2], "Chat completions", service.chat, schemas.TextResponse, schemas.ChatRequest)
    add("GET", "/v1/models", "Models of OpenAI's API", service.list_models, schemas.ModelList)
    return router


def is_openai_path(path: str) -> bool:
    """Whether errors of `path` have OpenAI's form."""
    parts = path.split("/")
    return len(parts) > 2 and parts[1] == "v1" and (parts[2] in _UNSERVED or path == "/v1/models")


def unserved(method: str, path: str) -> tuple[int, bytes, HeaderList]:
    """The response to a request for one of OpenAI's paths that no route serves. REQUIRES: `is_openai_path`."""
    served = f"{', '.join(f'POST {each}' for each in _POSTED)} and GET /v1/models"
    error: ServingError
    if path in _POSTED or path == "/v1/models":
        error = FieldError("method", f"{path} does not take {method}; served are {served}", "method_not_supported")
        _, body, headers = error_response(error)
        return 405, body, [*headers, (b"allow", b"POST" if path in _POSTED else b"GET, HEAD")]
    error = UnknownPath(f"this server does not serve {path[:128]}; served are {served}")
    return error_response(error)
