"""TensorFlow Serving's REST routes, and the models of their bodies.

The models document the bodies; the codecs read, check and print them. FastAPI cannot check a body here and keep the protocol:

* Clients compare TensorFlow Serving's error texts. These quote the JSON value and come in the protocol's order: the JSON, the signature,
  the model, then its inputs. FastAPI checks a declared body before the endpoint finds the model.
* `NaN` and `Infinity` are numbers, and paths match in any case. FastAPI has neither.
* The body of `:predict` decides between this protocol and Adlik's. FastAPI's routing would add 160 us to the 40 us of a whole request.
"""

from typing import Any, Final

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field, RootModel

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


class ServingExamplesBody(BaseModel):
    """A list of Examples, for `:classify` and `:regress`."""

    model_config = ConfigDict(json_schema_extra={"example": {"examples": [{"x": 1.5, "y": [1, 2]}], "context": {"z": "text"}}})

    signature_name: str | None = None
    context: dict[str, Any] | None = Field(None, description="Features that every example has unless it has one of that name itself")
    examples: list[dict[str, Any]] = Field(description="Each has its features by name: a value or a list of values")


class ServingClassesResponse(BaseModel):
    """TensorFlow Serving's response to `:classify`: for each example, a list of label and score."""

    results: list[list[tuple[str, float]]]


class ServingNumbersResponse(BaseModel):
    """TensorFlow Serving's response to `:regress`: a number for each example."""

    results: list[float]


class ServingStatus(BaseModel):
    """TensorFlow Serving's GetModelStatusResponse as JSON."""

    model_version_status: list[dict[str, Any]]


class ServingTensorsBody(RootModel[ServingRowsBody | ServingColumnsBody]):
    """Rows or columns."""


class ServingTensorsResponse(RootModel[ServingRowsResponse | ServingColumnsResponse]):
    """In the form of the request."""


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

    def add(method: str, path: str, summary: str, parameters: Any, response: type[BaseModel], body: type[BaseModel] | None = None) -> None:
        router.add_api_route(
            path,
            respond_by_codec,
            methods=[method],
            tags=["TensorFlow Serving"],
            summary=summary,
            dependencies=[parameters],
            responses={200: {"model": response}},
            openapi_extra=None if body is None else context.codec_body(body),
            name=f"{method} {path}",
        )

    for path, parameters in (*MODEL_PATHS, _LABEL_PATH):
        add("GET", path, "States of a model's versions", parameters, ServingStatus)
        add("POST", f"{path}:classify", "Labelled scores of examples", parameters, ServingClassesResponse, ServingExamplesBody)
        add("POST", f"{path}:regress", "A number for each example", parameters, ServingNumbersResponse, ServingExamplesBody)
    path, parameters = _LABEL_PATH
    add("POST", f"{path}:predict", "Inference by a labelled version", parameters, ServingTensorsResponse, ServingTensorsBody)
    add("GET", f"{path}/metadata", "Metadata of a labelled version", parameters, ServingMetadata)
    return router
