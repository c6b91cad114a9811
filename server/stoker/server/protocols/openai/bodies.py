"""The bodies of OpenAI's requests: fields that the server reads itself, and options that go to the model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from stoker.server.core.openai_contract import Endpoint
from stoker.server.protocols.openai.errors import FieldError

#: Bounds of one request.
MOST_INPUTS: Final = 2048
MOST_CHOICES: Final = 128
MOST_STOPS: Final = 16
MOST_STOP_CHARACTERS: Final = 256
MOST_TOKENS: Final = 1 << 20

#: Fields that OpenAI's service reads for billing, storage and routing: accepted, without effect.
_WITHOUT_EFFECT: Final = frozenset(
    {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"}
)
#: Fields that are rejected if they ask for something, because the response would lack it.
_UNSUPPORTED: Final = ("logprobs", "top_logprobs", "audio", "web_search_options", "best_of")

#: Values of fields that ask for text, which is all that there is.
_DEFAULTS: Final[Mapping[str, Any]] = {"response_format": {"type": "text"}, "modalities": ["text"]}

Tokens = list[int]


@dataclass(frozen=True, slots=True)
class EmbeddingsBody:
    """A request for embeddings.

    Attributes:
        model: The model's name.
        texts: The texts; empty if there are tokens.
        tokens: Lists of token numbers.
        is_base64: Whether the response's vectors are base64 of little-endian FP32.
        options: Further fields, for the model.
    """

    model: str
    texts: tuple[str, ...]
    tokens: tuple[Tokens, ...]
    is_base64: bool
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextBody:
    """A request for completions or chat completions.

    Attributes:
        endpoint: Of the two.
        model: The model's name.
        sources: For each prompt the value of the model's text input; chat: one, the messages as JSON.
        tokens: For completions, prompts of token numbers instead.
        n: Choices for each prompt.
        stops: Stop sequences.
        is_stream: Whether the response is a stream of events.
        includes_usage: Whether a stream ends with an event of usage.
        echo: Whether the text of a completion begins with its prompt.
        max_tokens: None: the model's own limit.
        seed: None: the model's own.
        options: Further fields, for the model; `max_tokens`, `seed` and `stop` are among them.
    """

    endpoint: Endpoint
    model: str
    sources: tuple[str, ...]
    tokens: tuple[Tokens, ...] = ()
    n: int = 1
    stops: tuple[str, ...] = ()
    is_stream: bool = False
    includes_usage: bool = False
    echo: bool = False
    max_tokens: int | None = None
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt_count(self) -> int:
        """Prompts of the request."""
        return len(self.sources) + len(self.tokens)


def read_embeddings(given: dict[str, Any]) -> EmbeddingsBody:
    """Reads the parsed body of /v1/embeddings, and takes it apart.

    Raises:
        FieldError: a field is missing or wrong.
    """
    model = model_of(given)
    texts, tokens = _inputs(given, "input")
    encoding = _taken(given, "encoding_format", str, "float")
    if encoding not in ("float", "base64"):
        raise FieldError("encoding_format", f"'encoding_format' takes 'float' or 'base64', not '{encoding[:40]}'")
    return EmbeddingsBody(model, texts, tokens, encoding == "base64", _options(given))


def read_completions(given: dict[str, Any]) -> TextBody:
    """Reads the parsed body of /v1/completions, and takes it apart.

    Raises:
        FieldError: a field is missing or wrong.
    """
    model = model_of(given)
    sources, tokens = _inputs(given, "prompt")
    echo = bool(_taken(given, "echo", bool, False))
    if echo and tokens:
        raise FieldError("echo", "'echo' needs prompts of text, not of token numbers")
    return _text_body(Endpoint.COMPLETIONS, model, sources, tokens, given, echo=echo)


def read_chat(given: dict[str, Any]) -> TextBody:
    """Reads the parsed body of /v1/chat/completions, and takes it apart.

    Raises:
        FieldError: a field is missing or wrong.
    """
    model = model_of(given)
    messages = given.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        raise FieldError("messages", "'messages' must be a list of at least one message", "missing_required_parameter")
    if len(messages) > MOST_INPUTS:
        raise FieldError("messages", f"'messages' has {len(messages)} messages, more than the {MOST_INPUTS} allowed")
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")
    renamed = given.pop("max_completion_tokens", None)
    if renamed is not None:
        given["max_tokens"] = renamed
    return _text_body(Endpoint.CHAT, model, (orjson.dumps(messages).decode(),), (), given, echo=False)


def model_of(given: dict[str, Any]) -> str:
    """Takes the field `model` out of a body.

    Raises:
        FieldError: it is missing, or no text.
    """
    model = given.pop("model", None)
    if not isinstance(model, str) or not model:
        raise FieldError("model", "you must provide a 'model', the name of a model of this server", "missing_required_parameter")
    return model


def _check_message(message: Any, at: str) -> None:
    if not isinstance(message, dict):
        raise FieldError(at, f"'{at}' must be an object with 'role' and 'content'")
    if not isinstance(message.get("role"), str):
        raise FieldError(f"{at}.role", f"'{at}.role' must be a text such as 'user'")
    content = message.get("content")
    if content is None and ("tool_calls" in message or "function_call" in message or message["role"] == "assistant"):
        return
    is_parts = isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content)
    if not (isinstance(content, str) or is_parts):
        raise FieldError(f"{at}.content", f"'{at}.content' must be a text, or a list of parts with a 'type'")


def _text_body(
    endpoint: Endpoint, model: str, sources: tuple[str, ...], tokens: tuple[Tokens, ...], given: dict[str, Any], *, echo: bool
) -> TextBody:
    n = _integer(given, "n", 1, MOST_CHOICES)
    given.pop("n", None)
    prompts = len(sources) + len(tokens)
    if (n or 1) * prompts > MOST_CHOICES:
        raise FieldError("n", f"{prompts} prompts with 'n' {n or 1} are more than the {MOST_CHOICES} choices allowed in a request")
    stops = _stops(given)
    is_stream = bool(_taken(given, "stream", bool, False))
    stream_options = _taken(given, "stream_options", dict, {})
    if stream_options and not is_stream:
        raise FieldError("stream_options", "'stream_options' is only allowed with 'stream': true")
    usage = stream_options.get("include_usage")
    if usage is not None and not isinstance(usage, bool):
        raise FieldError("stream_options.include_usage", "'stream_options.include_usage' must be a boolean")
    if given.get("best_of") is not None and given["best_of"] == (n or 1):
        given.pop("best_of")
    for name in _UNSUPPORTED:
        # 0 is a wish for log probabilities of a completion.
        if given.pop(name, None) not in (None, False):
            raise FieldError(name, f"'{name}' is not supported by this server", "unsupported_parameter")
    for name, least, most in (("temperature", 0, 100), ("top_p", 0, 1), ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2)):
        _check_number(given, name, least, most)
    max_tokens = _integer(given, "max_tokens", 0 if endpoint is Endpoint.COMPLETIONS else 1, MOST_TOKENS)
    seed = _integer(given, "seed", -(1 << 63), (1 << 63) - 1)
    return TextBody(
        endpoint,
        model,
        sources,
        tokens,
        n or 1,
        stops,
        is_stream,
        bool(usage),
        echo,
        max_tokens,
        seed,
        _options(given, {"stop": list(stops)} if stops else {}),
    )


def _options(given: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The fields that go to the model. Those that ask for what is done anyway are left out: few models have inputs for them."""
    options = {
        key: value
        for key, value in given.items()
        if value not in (None, [], {}) and key not in _WITHOUT_EFFECT and _DEFAULTS.get(key, None) != value
    }
    return {**options, **(more or {})}


def _inputs(given: dict[str, Any], name: str) -> tuple[tuple[str, ...], tuple[Tokens, ...]]:
    """A field that is a text, a list of texts, a list of token numbers, or a list of those: texts and tokens, of which one is empty."""
    value = given.pop(name, None)
    if value is None:
        raise FieldError(name, f"you must provide '{name}'", "missing_required_parameter")
    if isinstance(value, str):
        return (value,), ()
    if isinstance(value, list) and value:
        if len(value) > MOST_INPUTS and not _are_tokens(value):
            raise FieldError(name, f"'{name}' has {len(value)} entries, more than the {MOST_INPUTS} allowed")
        if all(isinstance(each, str) for each in value):
            return tuple(value), ()
        if _are_tokens(value):
            return (), (value,)
        if all(isinstance(each, list) and each and _are_tokens(each) for each in value):
            return (), tuple(value)
    raise FieldError(name, f"'{name}' must be a text, a list of texts, a list of token numbers, or a list of such lists, and not empty")


def _are_tokens(values: Collection[Any]) -> bool:
    return all(type(each) is int and 0 <= each < (1 << 31) for each in values)


def _stops(given: dict[str, Any]) -> tuple[str, ...]:
    stop = given.pop("stop", None)
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise FieldError("stop", "'stop' must be a text or a list of texts, none of them empty")
    if len(stops) > MOST_STOPS or any(len(each) > MOST_STOP_CHARACTERS for each in stops):
        raise FieldError("stop", f"'stop' takes at most {MOST_STOPS} texts of {MOST_STOP_CHARACTERS} characters")
    return tuple(stops)


def _taken(given: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = given.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, kind):
        kinds = {str: "a text", bool: "a boolean", dict: "an object"}
        raise FieldError(name, f"'{name}' must be {kinds[kind]}", "invalid_type")
    return value


def _integer(given: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        raise FieldError(name, f"'{name}' takes a whole number from {least} to {most}, not {_shown(value)}")
    return value


def _check_number(given: Mapping[str, Any], name: str, least: float, most: float) -> None:
    value = given.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise FieldError(name, f"'{name}' takes a number from {least} to {most}, not {_shown(value)}")


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode(errors="replace")[:40]
