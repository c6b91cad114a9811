"""`Waiter`: the awaitable form of whatever answers by a callback."""

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Waiter(Generic[T]):
    """Called once with an answer, or with what went wrong; awaited once. Confined to: the event loop.

    A future would keep the error it was given, and errors lead back to the frames they were raised in, and those to the future: a cycle
    that keeps a request in memory until the next collection. This lets go of what it hands on.
    """

    __slots__ = ("_outcome", "_woken")

    def __init__(self) -> None:
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outcome: T | Exception | None = None

    def __call__(self, outcome: T | Exception) -> None:
        if not self._woken.done():
            self._outcome = outcome
            self._woken.set_result(None)

    async def outcome(self) -> T:
        """The answer.

        Raises:
            Exception: what it was called with, if that is one.
        """
        await self._woken
        outcome, self._outcome = self._outcome, None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            assert outcome is not None
            return outcome
        finally:
            del outcome
