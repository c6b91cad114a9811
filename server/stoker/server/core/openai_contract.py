"""The tensors of a model that serves OpenAI's API: the contract that config.pbtxt parameter `openai` declares. Pure.

A model has one input that holds the request's text, and one output that holds the response's. Further tensors are optional. A scalar is a
tensor of dims `[]`, `[1]` or `[-1]`, with the batch dimension in front if the model is batched.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType

#: The key in config.pbtxt `parameters`.
PARAMETER: Final = "openai"


class Endpoint(enum.StrEnum):
    """An endpoint that a model may declare."""

    EMBEDDINGS = "embeddings"
    COMPLETIONS = "completions"
    CHAT = "chat"


class Contract(NamedTuple):
    """The tensors of one endpoint.

    Attributes:
        source: The input that holds the text (BYTES).
        result: The output that holds the result.
        result_types: The datatypes that `result` may have.
        source_types: The datatypes of `source`.
    """

    source: str
    result: str
    result_types: frozenset[DataType]
    source_types: frozenset[DataType] = frozenset({DataType.BYTES})


_TEXT: Final = frozenset({DataType.BYTES})
_FLOATS: Final = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})
_INTEGERS: Final = frozenset({DataType.INT32, DataType.INT64, DataType.UINT32, DataType.UINT64})

CONTRACTS: Final[Mapping[Endpoint, Contract]] = {
    Endpoint.EMBEDDINGS: Contract("text", "embedding", _FLOATS),
    Endpoint.COMPLETIONS: Contract("prompt", "text", _TEXT),
    Endpoint.CHAT: Contract("messages", "text", _TEXT),
}
#: An input of token numbers that a model may have beside, or in place of, the text.
TOKENS: Final = "tokens"
#: Further outputs that the server reads, with their datatypes.
FINISH_REASON, TOOL_CALLS, PROMPT_TOKENS, COMPLETION_TOKENS = "finish_reason", "tool_calls", "prompt_tokens", "completion_tokens"
FURTHER_OUTPUTS: Final[Mapping[str, frozenset[DataType]]] = {
    FINISH_REASON: _TEXT,
    TOOL_CALLS: _TEXT,
    PROMPT_TOKENS: _INTEGERS,
    COMPLETION_TOKENS: _INTEGERS,
}
_ALLOWED: Final = ", ".join(Endpoint)


def endpoints_of(parameters: Mapping[str, str]) -> frozenset[Endpoint]:
    """The endpoints that the parameters of a configuration declare; unknown names are left out."""
    return frozenset(Endpoint(name) for name in _names(parameters) if name in set(Endpoint))


def is_scalar(spec: TensorSpec) -> bool:
    """Whether `spec` may hold one element for each request."""
    return spec.dims in ((), (1,), (VARIABLE,))


def violations(signature: ModelSignature | None, parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each field of a configuration that breaks the contract, and the reason.

    Args:
        signature: The completed signature; None: it has other errors.
        parameters: config.pbtxt `parameters`.
    """
    at = f'parameters["{PARAMETER}"]'
    if PARAMETER not in parameters:
        return
    names = _names(parameters)
    wrong = [name for name in names if name not in set(Endpoint)]
    if wrong or not names:
        yield at, f"takes one or more of {_ALLOWED}, separated by commas, not '{parameters[PARAMETER][:64]}'"
    if signature is None:
        return
    for endpoint in sorted(endpoints_of(parameters)):
        for text in _missing(signature, endpoint):
            yield at, f"{endpoint}: {text}"


def _names(parameters: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in parameters.get(PARAMETER, "").split(",") if name.strip()]


def _missing(signature: ModelSignature, endpoint: Endpoint) -> Iterator[str]:
    contract = CONTRACTS[endpoint]
    source, result = signature.input(contract.source), signature.output(contract.result)
    tokens = signature.input(TOKENS) if endpoint is not Endpoint.CHAT else None
    if source is None and tokens is None:
        yield f"the model needs an input '{contract.source}' of TYPE_STRING"
    if source is not None and (source.datatype is not DataType.BYTES or not is_scalar(source)):
        yield f"input '{source.name}' takes TYPE_STRING and dims [ 1 ], not {_described(source)}"
    if tokens is not None and (tokens.datatype not in _INTEGERS or len(tokens.dims) != 1):
        yield f"input '{TOKENS}' takes an integer type and dims [ -1 ], not {_described(tokens)}"
    if result is None:
        yield f"the model needs an output '{contract.result}'"
    elif result.datatype not in contract.result_types:
        yield f"output '{result.name}' takes {_listed(contract.result_types)}, not {_described(result)}"
    elif endpoint is not Endpoint.EMBEDDINGS and not is_scalar(result):
        yield f"output '{result.name}' takes dims [ 1 ], not {_described(result)}"
    elif endpoint is Endpoint.EMBEDDINGS and len(result.dims) != (1 if signature.is_batched else 2):
        dims = "[ n ]" if signature.is_batched else "[ -1, n ]"
        yield f"output '{result.name}' takes dims {dims}, with n numbers for each text, not {_described(result)}"
    for spec in signature.inputs:
        if not spec.optional and spec.name != contract.source:
            yield f"input '{spec.name}' must be optional: a request may come without it"
    for name, types in FURTHER_OUTPUTS.items():
        spec_or_none = signature.output(name)
        if spec_or_none is not None and (spec_or_none.datatype not in types or not is_scalar(spec_or_none)):
            yield f"output '{name}' takes {_listed(types)} and dims [ 1 ], not {_described(spec_or_none)}"


def _listed(types: Iterable[DataType]) -> str:
    return ", ".join(sorted(each.config_name for each in types))


def _described(spec: TensorSpec) -> str:
    return f"{spec.datatype.config_name} {list(spec.dims)}"
