"""config.pbtxt parameter `openai`: the tensors that a model of OpenAI's API must have."""

import pytest

from stoker.backends.api.model import FileTensor, ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.server.config.complete import complete
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.config.report import ConfigError
from tests.fakes.named_backends import NamedBackend

NOTHING = ModelFacts(inputs=None, outputs=None)
BACKEND = NamedBackend("texts", "model.texts")
CHAT = """
input [ { name: "messages" data_type: TYPE_STRING dims: 1 }, { name: "seed" data_type: TYPE_INT64 dims: 1 optional: true } ]
output [ { name: "text" data_type: TYPE_STRING dims: 1 }, { name: "finish_reason" data_type: TYPE_STRING dims: 1 } ]
"""
EMBEDDINGS = """
max_batch_size: 8
input { name: "text" data_type: TYPE_STRING dims: 1 }
output { name: "embedding" data_type: TYPE_FP32 dims: 384 }
"""


def problems(config: str, endpoints: str) -> list[str]:
    text = f'parameters {{ key: "openai" value {{ string_value: "{endpoints}" }} }}\n{config}'
    try:
        completion = complete(parse_pbtxt(text, source="m/config.pbtxt", model_name="m"), NOTHING, BACKEND, "model.texts")
    except ConfigError as error:
        return [f"{problem.field}: {problem.message}" for problem in error.problems]
    assert completion.config.parameters["openai"] == endpoints
    assert not [finding for finding in completion.findings if "does not read it" in finding.text]
    return []


@pytest.mark.parametrize(("config", "endpoints"), [(CHAT, "chat"), (EMBEDDINGS, "embeddings"), (EMBEDDINGS, " embeddings, ")])
def test_model_with_the_tensors_is_accepted(config: str, endpoints: str) -> None:
    assert problems(config, endpoints) == []


@pytest.mark.parametrize(
    ("config", "endpoints", "expected"),
    [
        (CHAT, "chats", ["takes one or more of embeddings, completions, chat, separated by commas, not 'chats'"]),
        (CHAT, "", ["takes one or more of embeddings, completions, chat, separated by commas, not ''"]),
        (
            CHAT,
            "chat,completions",
            [
                "completions: the model needs an input 'prompt' of TYPE_STRING",
                "completions: input 'messages' must be optional: a request may come without it",
            ],
        ),
        (EMBEDDINGS.replace("TYPE_FP32", "TYPE_INT32"), "embeddings", ["'embedding' takes TYPE_FP16, TYPE_FP32, TYPE_FP64, not"]),
        (EMBEDDINGS.replace("dims: 384", "dims: [ 2, 2 ]"), "embeddings", ["takes dims [ n ], with n numbers for each text"]),
        (EMBEDDINGS.replace("max_batch_size: 8", ""), "embeddings", ["takes dims [ -1, n ], with n numbers for each text"]),
        (CHAT.replace('"text"', '"answer"'), "chat", ["the model needs an output 'text'"]),
        (CHAT.replace('reason" data_type: TYPE_STRING', 'reason" data_type: TYPE_INT8'), "chat", ["takes TYPE_STRING and dims [ 1 ]"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(config: str, endpoints: str, expected: list[str]) -> None:
    found = problems(config, endpoints)
    assert len(found) == len(expected)
    for text, part in zip(found, expected, strict=True):
        assert text.startswith('parameters["openai"]: ')
        assert part in text


def test_model_without_the_parameter_has_any_tensors() -> None:
    tensors = FileTensor("x", DataType.FP32, (-1, 2)), FileTensor("y", DataType.FP32, (-1, 2))
    facts = ModelFacts(inputs=tensors[:1], outputs=tensors[1:])
    assert complete(parse_pbtxt("", source="m/config.pbtxt", model_name="m"), facts, BACKEND, "model.texts").config.parameters == {}
