"""Prints completions and chat completions as OpenAI's objects: whole, or as the chunks of a stream. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from stoker.server.core.openai_contract import Endpoint
from stoker.server.protocols.openai.generation import Piece

DONE: Final = b"data: [DONE]\n\n"


class Usage:
    """The tokens of one request.

    Attributes:
        prompt_tokens: Of all prompts; a prompt with several choices counts once.
        completion_tokens: Of all choices.
    """

    def __init__(self, n: int) -> None:
        """`n`: choices of each prompt."""
        self._n = n
        self.prompt_tokens = self.completion_tokens = 0

    def add(self, piece: Piece) -> None:
        """Counts the last piece of a choice."""
        if piece.choice % self._n == 0:
            self.prompt_tokens += piece.prompt_tokens
        self.completion_tokens += piece.completion_tokens

    @property
    def printed(self) -> dict[str, int]:
        """As OpenAI prints it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


class Printer:
    """Prints one response."""

    def __init__(self, endpoint: Endpoint, response_id: str, created_s: int, model: str, *, has_usage: bool) -> None:
        """`has_usage`: whether a stream ends with a chunk of usage; all other chunks then have the key too."""
        self._is_chat = endpoint is Endpoint.CHAT
        self._has_usage = has_usage
        self._head = {"id": response_id, "object": "", "created": created_s, "model": model}

    def first(self, choices: int, echoes: list[str]) -> Iterator[bytes]:
        """The events before the model's text: the role of each chat message, or the prompts to be echoed."""
        for index in range(choices):
            if self._is_chat:
                yield self._event([_chat_choice(index, {"role": "assistant", "content": ""})])
            elif echoes:
                yield self._event([_text_choice(index, echoes[index])])

    def event(self, piece: Piece) -> Iterator[bytes]:
        """The events of `piece`."""
        if not self._is_chat:
            if piece.text or piece.finish_reason is not None:
                yield self._event([_text_choice(piece.choice, piece.text, piece.finish_reason)])
            return
        delta: dict[str, Any] = {"content": piece.text} if piece.text else {}
        if piece.tool_calls:
            delta["tool_calls"] = piece.tool_calls
        if delta:
            yield self._event([_chat_choice(piece.choice, delta)])
        if piece.finish_reason is not None:
            yield self._event([_chat_choice(piece.choice, {}, piece.finish_reason)])

    def usage(self, usage: Usage) -> bytes:
        """The event with the usage of the whole request."""
        return self._event([], usage.printed)

    def _event(self, choices: list[dict[str, Any]], usage: Mapping[str, int] | None = None) -> bytes:
        printed = {**self._head, "object": "chat.completion.chunk" if self._is_chat else "text_completion", "choices": choices}
        if self._has_usage:
            printed["usage"] = usage
        return b"data: %b\n\n" % orjson.dumps(printed)

    def whole(self, gathered: "list[GatheredChoice]", usage: Usage) -> bytes:
        """The response that is no stream."""
        choices = [choice.as_message() if self._is_chat else choice.as_text() for choice in gathered]
        kind = "chat.completion" if self._is_chat else "text_completion"
        return orjson.dumps({**self._head, "object": kind, "choices": choices, "usage": usage.printed})


class GatheredChoice:
    """One choice of a response that is no stream."""

    def __init__(self, index: int, text: str = "") -> None:
        """`text` comes before the model's."""
        self._index = index
        self._texts = [text]
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish_reason: str | None = None

    def add(self, piece: Piece) -> None:
        """Adds `piece` of this choice."""
        self._texts.append(piece.text)
        for call in piece.tool_calls:
            _merge(self._calls.setdefault(call["index"], {}), call)
        self._finish_reason = piece.finish_reason or self._finish_reason

    def as_text(self) -> dict[str, Any]:
        """As a choice of a completion."""
        return _text_choice(self._index, "".join(self._texts), self._finish_reason)

    def as_message(self) -> dict[str, Any]:
        """As a choice of a chat completion."""
        text = "".join(self._texts)
        calls = [{key: value for key, value in call.items() if key != "index"} for _, call in sorted(self._calls.items())]
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return {"index": self._index, "message": message, "logprobs": None, "finish_reason": self._finish_reason}


def _text_choice(index: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _chat_choice(index: int, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _merge(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Adds a part of a call: objects are merged, the text of `arguments` is appended, other values are replaced."""
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(whole.get(key), dict):
            _merge(whole[key], value)
        elif key == "arguments" and isinstance(value, str) and isinstance(whole.get(key), str):
            whole[key] += value
        else:
            whole[key] = dict(value) if isinstance(value, dict) else value
