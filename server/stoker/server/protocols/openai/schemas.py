"""The bodies of OpenAI's API, for the OpenAPI document: the codec reads, checks and prints them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class OpenAiError(BaseModel):
    """OpenAI's error object."""

    error: dict[str, Any] = Field(description="`message`, `type`, `param` and `code`")


class EmbeddingsRequest(BaseModel):
    """Texts, or lists of token numbers if the model takes them."""

    model_config = ConfigDict(json_schema_extra={"example": {"model": "embedder", "input": ["a text", "another one"]}}, extra="allow")

    model: str
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"


class _TextRequest(BaseModel):
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = Field(None, description="Choices for each prompt")
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = Field(None, description='`{"include_usage": true}`: a last chunk with the usage')


class CompletionsRequest(_TextRequest):
    """One or several prompts; further fields go to the model as inputs or parameters."""

    model_config = ConfigDict(json_schema_extra={"example": {"model": "writer", "prompt": "Once", "max_tokens": 16}}, extra="allow")

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool = False


class ChatRequest(_TextRequest):
    """A conversation; further fields go to the model as inputs or parameters."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "writer", "messages": [{"role": "user", "content": "Hello"}]}}, extra="allow"
    )

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None


class EmbeddingsResponse(BaseModel):
    """One vector for each input."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


class TextResponse(BaseModel):
    """Choices; with `stream` server-sent events of chunks, the last of which is `[DONE]`."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, int] | None = None


class ModelObject(BaseModel):
    """One model; `endpoints` is an addition of this server."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    endpoints: list[str]


class ModelList(BaseModel):
    """The models that serve an endpoint."""

    object: Literal["list"]
    data: list[ModelObject]
