"""Adlik's REST routes, and the models of its bodies.

The models document the bodies. The codecs read and check them, for the reasons in `protocols.tfs.routes`, and because proto3 JSON allows
several names and forms of a field, which a declared model does not.
"""

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from stoker.server.protocols.routing import CodecResponse, PathText, Respond, RouteContext


class AdlikTensor(BaseModel):
    """A TensorProto: `tensor_content` (base64 of little-endian bytes), or typed values such as `float_val`."""

    model_config = ConfigDict(extra="allow")

    dtype: str | None = Field(None, examples=["DT_FLOAT"], description="That of the model where left out")
    tensor_shape: dict[str, Any] | None = Field(None, description="With the batch dimension; that of the model where left out")
    tensor_content: str | None = None


class AdlikPredictBody(BaseModel):
    """Adlik's PredictRequest as proto3 JSON."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "batch_size": 1,
                "inputs": {
                    "INPUT0": {"dtype": "DT_INT32", "tensor_shape": {"dim": [{"size": "1"}, {"size": "16"}]}, "int_val": [1]},
                    "INPUT1": {"int_val": list(range(16))},
                },
                "output_filter": {"OUTPUT0": {}},
            }
        }
    )

    batch_size: int = Field(ge=1)
    inputs: dict[str, AdlikTensor]
    output_filter: dict[str, dict[str, Any]] | None = Field(None, description='All outputs where left out; {"cls": {"count": k}} names k')


class AdlikPredictResponse(BaseModel):
    """Adlik's PredictResponse as proto3 JSON."""

    model_spec: dict[str, Any]
    outputs: dict[str, dict[str, Any]]


class AdlikMetadata(BaseModel):
    """Adlik's GetModelMetaResponse as proto3 JSON."""

    model_spec: dict[str, Any]
    config: dict[str, Any]
    version_status: dict[str, Any]


def adlik_router(context: RouteContext, respond: Respond) -> APIRouter:
    """The routes below /v1 that only Adlik has; `respond` serves everything below /v1."""
    router = context.router()
    # These routes reject every request in Adlik's form.
    add: dict[str, Any] = {"tags": ["not offered"], "summary": "Adlik's tasks (not offered)"}

    @router.post("/v1/models/{model}:ml_predict", **add)
    async def ml_predict(model: PathText) -> Response:
        return CodecResponse(respond)

    @router.post("/v1/models/{model}/versions/{version}:ml_predict", **add)
    async def ml_predict_version(model: PathText, version: PathText) -> Response:
        return CodecResponse(respond)

    return router
