"""What the OpenAPI page says of bodies. Documentation only: requests are judged by the codecs, answers printed by them."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

Parameters = dict[str, bool | int | float | str]


class ErrorResponse(BaseModel):
    """Any failure."""

    error: str


class Live(BaseModel):
    """Whether the process serves."""

    live: bool


class Ready(BaseModel):
    """Whether the server is ready for inference."""

    ready: bool


class ModelReady(BaseModel):
    """Whether a model (version) is ready for inference."""

    name: str
    ready: bool


class ServerMetadata(BaseModel):
    """Who answers."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """One input or output; -1 in `shape` where the size varies."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InferInput(BaseModel):
    """One input: `data`, or parameter `binary_data_size` and bytes behind the JSON part."""

    name: str
    datatype: str = Field(examples=["FP32"])
    shape: list[int]
    parameters: Parameters | None = None
    data: list[Any] | None = None


class InferRequestedOutput(BaseModel):
    """An output wanted; parameters `binary_data`, `classification`."""

    name: str
    parameters: Parameters | None = None


class GenerateRequestBody(BaseModel):
    """Inputs by name; every other key, and what `parameters` holds, is a parameter of the request."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"example": {"INPUT0": list(range(16)), "INPUT1": [1] * 16, "parameters": {"mine": 1}}}
    )

    id: str | None = None
    parameters: Parameters | None = None


class InferRequestBody(BaseModel):
    """An inference request."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "inputs": [
                    {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))},
                    {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16},
                ]
            }
        }
    )

    id: str | None = None
    parameters: Parameters | None = None
    inputs: list[InferInput]
    outputs: list[InferRequestedOutput] | None = Field(None, description="All outputs where left out")


class InferOutput(BaseModel):
    """One output, row-major."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters | None = None
    data: list[Any] | None = None


class InferResponseBody(BaseModel):
    """The answer to an inference request."""

    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[InferOutput]


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


class PredictBody(RootModel[ServingRowsBody | ServingColumnsBody | AdlikPredictBody]):
    """TensorFlow Serving's rows or columns, or Adlik's request: the body tells whose it is, or `?format=tfs`, `?format=adlik`."""


class ServingRowsResponse(BaseModel):
    """TensorFlow Serving's answer to rows."""

    predictions: list[Any]


class ServingColumnsResponse(BaseModel):
    """TensorFlow Serving's answer to columns."""

    outputs: Any


class PredictResponse(RootModel[ServingRowsResponse | ServingColumnsResponse | AdlikPredictResponse]):
    """In the form of the request."""


class AdlikMetadata(BaseModel):
    """Adlik's GetModelMetaResponse as proto3 JSON."""

    model_spec: dict[str, Any]
    config: dict[str, Any]
    version_status: dict[str, Any]


class ServingMetadata(BaseModel):
    """TensorFlow Serving's GetModelMetadataResponse as JSON."""

    model_spec: dict[str, Any]
    metadata: dict[str, Any]


class Metadata(RootModel[ServingMetadata | AdlikMetadata]):
    """TensorFlow Serving's, or Adlik's: see `--rest_v1`; `?format=tfs` and `?format=adlik` decide for one request."""


class ModelStatisticsResponse(BaseModel):
    """Statistics for each version, durations in nanoseconds."""

    model_stats: list[dict[str, Any]]


class IndexRequestBody(BaseModel):
    """What the index should hold."""

    ready: bool = False


class IndexEntryResponse(BaseModel):
    """One model version; version and state are left out where it was never loaded."""

    name: str
    version: str | None = None
    state: str | None = None
    reason: str | None = None


class LoadRequestBody(BaseModel):
    """Parameters `config` (ModelConfig as JSON) and `file:<path>` (base64)."""

    parameters: dict[str, str] | None = None


class UnloadRequestBody(BaseModel):
    """Parameter `unload_dependents`."""

    parameters: dict[str, bool] | None = None
