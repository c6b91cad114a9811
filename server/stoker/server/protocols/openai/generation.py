"""Runs the requests of one completion, and yields the text of its choices piece by piece.

Each choice of a decoupled model is a request of its own, and all run at once. Closing the generator cancels them. A model that is slower
than its client delays the client; a client that is slower delays the model, because at most one piece waits here.
"""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import orjson

from stoker.backends.api.errors import BackendFailed
from stoker.server.core.openai_contract import COMPLETION_TOKENS, FINISH_REASON, PROMPT_TOKENS, TOOL_CALLS
from stoker.server.core.request import Array, InferRequest
from stoker.server.engine.interface import Engine
from stoker.server.protocols.openai.stop_sequences import StopFilter
from stoker.server.protocols.openai.tensors import row_element, text_of

STOP, LENGTH, TOOLS = "stop", "length", "tool_calls"


class Job(NamedTuple):
    """One request of the engine.

    Attributes:
        request: The request.
        choices: The choice of each of its rows.
    """

    request: InferRequest
    choices: tuple[int, ...]


class Piece(NamedTuple):
    """A part of one choice.

    Attributes:
        choice: The index of the choice.
        text: Its next text.
        tool_calls: Parts of calls that the model asks for, in OpenAI's form.
        finish_reason: Set in the last piece of a choice.
        prompt_tokens, completion_tokens: In the last piece: tokens of the prompt, and of the choice; 0: the model does not count them.
    """

    choice: int
    text: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


async def pieces(engine: Engine, jobs: Sequence[Job], stops: Sequence[str], max_tokens: int | None) -> AsyncGenerator[Piece, None]:
    """The pieces of all jobs, as they come; each choice ends with a piece that has a `finish_reason`.

    Raises:
        ServingError: a request was rejected, or the model failed; the other requests are cancelled.
    """
    if len(jobs) == 1:
        async with aclosing(_run(engine, jobs[0], stops, max_tokens)) as found:
            async for piece in found:
                yield piece
        return
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(1)

    async def pump(job: Job) -> None:
        try:
            async with aclosing(_run(engine, job, stops, max_tokens)) as found:
                async for piece in found:
                    await queue.put(piece)
        except Exception as error:  # noqa: BLE001 - raised again by the generator
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(pump(job)) for job in jobs]
    try:
        unfinished = len(tasks)
        while unfinished:
            item = await queue.get()
            if item is None:
                unfinished -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(engine: Engine, job: Job, stops: Sequence[str], max_tokens: int | None) -> AsyncGenerator[Piece, None]:
    rows = [_Choice(choice, stops, max_tokens) for choice in job.choices]
    async with aclosing(engine.stream(job.request)) as responses:
        async for response in responses:
            for row, choice in enumerate(rows):
                piece = choice.take(response.outputs, row)
                if piece is not None:
                    yield piece
            if all(choice.is_stopped for choice in rows):
                # Leaving the stream cancels the request.
                break
    for choice in rows:
        yield choice.end()


class _Choice:
    """What one choice has sent so far."""

    def __init__(self, index: int, stops: Sequence[str], max_tokens: int | None) -> None:
        self._index = index
        self._filter = StopFilter(stops)
        self._max_tokens = max_tokens
        # A response may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._finish_reason = ""
        self._prompt_tokens = self._completion_tokens = 0
        self._has_tool_calls = False

    @property
    def is_stopped(self) -> bool:
        """Whether a stop sequence has come."""
        return self._filter.is_stopped

    def take(self, outputs: Mapping[str, Array], row: int) -> Piece | None:
        """The piece of one response; None: it has no text to send."""
        if self.is_stopped:
            return None
        self._prompt_tokens = _count(outputs, PROMPT_TOKENS, row, self._prompt_tokens)
        self._completion_tokens = _count(outputs, COMPLETION_TOKENS, row, self._completion_tokens)
        reason = row_element(outputs, FINISH_REASON, row)
        if reason is not None:
            self._finish_reason = text_of(reason).decode(errors="replace") or self._finish_reason
        element = row_element(outputs, _RESULT, row)
        text = "" if element is None else self._filter.push(self._decoder.decode(text_of(element)))
        calls = _tool_calls(row_element(outputs, TOOL_CALLS, row))
        self._has_tool_calls = self._has_tool_calls or bool(calls)
        return Piece(self._index, text, calls) if text or calls else None

    def end(self) -> Piece:
        """The last piece."""
        text = ""
        if not self.is_stopped:
            text = self._filter.push(self._decoder.decode(b"", final=True))
            text += self._filter.flush()
        return Piece(self._index, text, (), self._reason(), self._prompt_tokens, self._completion_tokens)

    def _reason(self) -> str:
        if self.is_stopped:
            return STOP
        if self._finish_reason:
            return self._finish_reason
        if self._has_tool_calls:
            return TOOLS
        return LENGTH if self._max_tokens is not None and self._completion_tokens >= self._max_tokens > 0 else STOP


_RESULT: Final = "text"


def _count(outputs: Mapping[str, Array], name: str, row: int, before: int) -> int:
    element = row_element(outputs, name, row)
    return before if element is None else int(element)


def _tool_calls(element: Any) -> tuple[Mapping[str, Any], ...]:
    if element is None or not (text := text_of(element)):
        return ()
    try:
        calls = orjson.loads(text)
    except orjson.JSONDecodeError:
        calls = None
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BackendFailed(f"output '{TOOL_CALLS}' of the model is no JSON list of objects")
    return tuple({"index": index, **call} for index, call in enumerate(calls))
