"""TensorFlow Serving's REST routes, and the models of its bodies, which the codecs read and print."""

from typing import Any, Final

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field

from stoker.server.protocols.routing import CodecResponse, PathText, Respond, RouteContext


class ServingRowsBody(BaseModel):
    """TensorFlow Serving's row form: a list of samples."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"signature_name": "serving_default", "instances": [{"INPUT0": list(range(16)), "INPUT1": [1] * 16}]}}
    )

    signature_name: str | None = None
    instances: list[Any] = Field(description="A sample each: its inputs by name, or the value alone where the model has one input")


class ServingColumnsBody(BaseModel):
    """TensorFlow Serving's column form: whole tensors."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": {"INPUT0": [list(range(16))], "INPUT1": [[1] * 16]}}})

    signature_name: str | None = None
    inputs: Any = Field(description="Tensors by name, or the tensor alone where the model has one input")


class ServingRowsResponse(BaseModel):
    """TensorFlow Serving's response to rows."""

    predictions: list[Any]


class ServingColumnsResponse(BaseModel):
    """TensorFlow Serving's response to columns."""

    outputs: Any


class ServingMetadata(BaseModel):
    """TensorFlow Serving's GetModelMetadataResponse as JSON."""

    model_spec: dict[str, Any]
    metadata: dict[str, Any]


async def _model(model: PathText) -> None:
    """Declares the parameters of a path. The codec reads the path itself, in any case."""


async def _version(model: PathText, version: PathText) -> None:
    """As `_model`."""


async def _label(model: PathText, label: PathText) -> None:
    """As `_model`."""


#: The paths below /v1 that name a model, and the declarations of their parameters.
MODEL_PATHS: Final = (("/v1/models/{model}", Depends(_model)), ("/v1/models/{model}/versions/{version}", Depends(_version)))
_LABEL_PATH: Final = ("/v1/models/{model}/labels/{label}", Depends(_label))


def tfs_router(context: RouteContext, respond: Respond) -> APIRouter:
    """The routes below /v1 that only TensorFlow Serving has; `respond` serves everything below /v1."""
    router = context.router()

    async def respond_by_codec() -> Response:
        return CodecResponse(respond)

    def add(method: str, path: str, summary: str, parameters: Any) -> None:
        name = f"{method} {path}"
        router.add_api_route(
            path, respond_by_codec, methods=[method], tags=["TensorFlow Serving"], summary=summary, dependencies=[parameters], name=name
        )

    for path, parameters in (*MODEL_PATHS, _LABEL_PATH):
        add("GET", path, "States of a model's versions", parameters)
        add("POST", f"{path}:classify", "Labelled scores of examples", parameters)
        add("POST", f"{path}:regress", "A number for each example", parameters)
    path, parameters = _LABEL_PATH
    add("POST", f"{path}:predict", "Inference by a labelled version", parameters)
    add("GET", f"{path}/metadata", "Metadata of a labelled version", parameters)
    return router
