"""The routes below /v1 that TensorFlow Serving and Adlik share."""

from typing import Any

from fastapi import APIRouter, Response
from pydantic import RootModel

from stoker.server.protocols.adlik.routes import AdlikMetadata, AdlikPredictBody, AdlikPredictResponse
from stoker.server.protocols.routing import CodecResponse, Respond, RouteContext
from stoker.server.protocols.tfs.routes import (
    MODEL_PATHS,
    ServingColumnsBody,
    ServingColumnsResponse,
    ServingMetadata,
    ServingRowsBody,
    ServingRowsResponse,
)


class PredictBody(RootModel[ServingRowsBody | ServingColumnsBody | AdlikPredictBody]):
    """TensorFlow Serving's rows or columns, or Adlik's request: the body decides whose it is, or `?format=tfs`, `?format=adlik`."""


class PredictResponse(RootModel[ServingRowsResponse | ServingColumnsResponse | AdlikPredictResponse]):
    """In the form of the request."""


class Metadata(RootModel[ServingMetadata | AdlikMetadata]):
    """TensorFlow Serving's, or Adlik's: see `--rest_v1`; `?format=tfs` and `?format=adlik` decide for one request."""


def shared_router(context: RouteContext, respond: Respond) -> APIRouter:
    """The shared routes; `respond` serves everything below /v1."""
    router = context.router()
    body = context.codec_body(PredictBody)

    async def respond_by_codec() -> Response:
        return CodecResponse(respond)

    for path, parameters in MODEL_PATHS:
        add: dict[str, Any] = {"tags": ["TensorFlow Serving and Adlik"], "dependencies": [parameters]}
        router.add_api_route(
            f"{path}:predict",
            respond_by_codec,
            methods=["POST"],
            summary="Inference",
            responses={200: {"model": PredictResponse}},
            openapi_extra=body,
            name=f"POST {path}:predict",
            **add,
        )
        router.add_api_route(
            f"{path}/metadata",
            respond_by_codec,
            summary="Model metadata",
            responses={200: {"model": Metadata}},
            name=f"GET {path}/metadata",
            **add,
        )
    return router
