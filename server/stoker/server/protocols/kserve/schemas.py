"""The models of KServe v2's JSON bodies: FastAPI validates control requests and serialises responses with them.

Bodies of inference requests are read by the codecs; their models here appear in the OpenAPI document.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel

from stoker.server.protocols.routing import ExactError, exactly

Parameters = dict[str, bool | int | float | str]
_UINT64_MAX: Final = (1 << 64) - 1


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
    """The server's name, version and extensions."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """One input or output; -1 in `shape` where the size varies."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """The inputs and outputs of a model."""

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
    """A requested output; parameters `binary_data`, `classification`."""

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
    """The response to an inference request."""

    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[InferOutput]


class ModelStatisticsResponse(BaseModel):
    """Statistics for each version, durations in nanoseconds."""

    model_stats: list[dict[str, Any]]


class IndexRequestBody(BaseModel):
    """Which models the index lists."""

    ready: Annotated[bool, exactly(lambda value: isinstance(value, bool), "'ready' must be a boolean")] = Field(
        False, description="Only models that are READY"
    )


class IndexEntryResponse(BaseModel):
    """One model version; version and state are left out where it was never loaded."""

    name: str
    version: str | None = None
    state: str | None = None
    reason: str | None = None


def _parameters_of(action: str, kind: type, article_and_kind: str) -> BeforeValidator:
    """Validates the parameters of a load or unload; a false value stands for none."""

    def validate(value: Any) -> Mapping[str, Any]:
        parameters = value or {}
        if not isinstance(parameters, dict):
            raise ExactError("'parameters' must be an object")
        for key, each in parameters.items():
            if not isinstance(each, kind):
                raise ExactError(f"{action} parameter '{key[:128]}' must be {article_and_kind}")
        return parameters

    return BeforeValidator(validate)


class LoadRequestBody(BaseModel):
    """Parameters `config` (ModelConfig as JSON) and `file:<path>` (base64)."""

    parameters: Annotated[dict[str, str] | None, _parameters_of("load", str, "a string")] = None


class UnloadRequestBody(BaseModel):
    """Parameter `unload_dependents`."""

    parameters: Annotated[dict[str, bool] | None, _parameters_of("unload", bool, "a boolean")] = None


class SystemRegion(BaseModel):
    """A registered region of system shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegion(BaseModel):
    """A registered region of GPU memory: there is none on a server without a GPU."""

    name: str
    device_id: int
    byte_size: int


def _unsigned(name: str) -> BeforeValidator:
    def is_valid(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _UINT64_MAX

    return exactly(is_valid, f"'{name}' must be an unsigned 64-bit integer")


class RegisterSystemBody(BaseModel):
    """A part of a POSIX shared memory object. A value that is left out is the default of gRPC: the service rejects it."""

    key: Annotated[str, exactly(lambda value: isinstance(value, str), "'key' must be a string")] = Field(
        "", examples=["/input_data"], description="The name of the object, as shm_open takes it"
    )
    offset: Annotated[int, _unsigned("offset")] = Field(0, description="Where the region begins in the object, in bytes")
    byte_size: Annotated[int, _unsigned("byte_size")] = 0


class TraceSettings(BaseModel):
    """Trace settings."""

    model_config = ConfigDict(extra="allow")

    trace_level: list[str] | None = Field(None, examples=[["TIMESTAMPS"]], description="OFF, or TIMESTAMPS and TENSORS")
    trace_rate: str | None = Field(None, examples=["1000"])
    trace_count: str | None = Field(None, examples=["-1"])
    log_frequency: str | None = Field(None, examples=["0"])
    trace_file: str | None = None
    trace_mode: str | None = Field(None, examples=["triton"])


def _setting_values(given: Any) -> Any:
    """Makes each value of a trace setting None or a list of strings."""
    if not isinstance(given, dict):
        return given
    changes: dict[str, list[str] | None] = {}
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(each, str) for each in values):
            raise ExactError(f"'{name[:128]}' must be a string, null, or for 'trace_level' an array of strings")
        changes[name] = None if value is None else values
    return changes


class TraceChanges(RootModel[Annotated[dict[str, list[str] | None], BeforeValidator(_setting_values)]]):
    """Trace settings to change: a string, or a list of strings for `trace_level`; null clears a setting. `trace_file` is fixed."""

    model_config = ConfigDict(
        json_schema_extra={"additionalProperties": {}, "example": {"trace_level": ["TIMESTAMPS"], "trace_rate": "1000"}}
    )


class LogSettings(BaseModel):
    """Log settings."""

    log_file: str | None = None
    log_info: bool | None = None
    log_warning: bool | None = None
    log_error: bool | None = None
    log_verbose_level: int | None = Field(None, ge=0)
    log_format: str | None = Field(None, examples=["default"])


class LogChanges(RootModel[dict[str, Any]]):
    """Log settings to change; null leaves a setting as it is. `log_file` is fixed. `LogControl` validates the values, for gRPC too."""

    model_config = ConfigDict(json_schema_extra={"example": {"log_verbose_level": 1}})
