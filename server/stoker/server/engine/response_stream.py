"""`ResponseStream`: one request's responses on their way from the worker's thread to the event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

from stoker.backends.api.backend import Arrays


class ResponseStream:
    """A bounded queue with one producer, a thread, and one consumer on the event loop.

    INVARIANT: the producer holds a place of `_permits` for every response that the consumer has not taken, so it waits when there are many.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        """Holds at most `most` responses that the consumer has not taken."""
        self._loop = loop
        self._permits = threading.Semaphore(most)
        self._waiting: deque[Arrays] = deque()
        self._changed = asyncio.Event()
        self._is_ended = False
        self._is_closed = False

    def put(self, outputs: Arrays) -> bool:
        """Takes one response; waits while `most` are unread. False: the consumer has closed. Called in the producer's thread."""
        self._permits.acquire()
        if self._is_closed:
            return False
        try:
            self._loop.call_soon_threadsafe(self._arrived, outputs)
        except RuntimeError:  # the loop closed first: the process ends, and no consumer is left
            return False
        return True

    def end(self) -> None:
        """Nothing more will come; what waits can still be taken."""
        self._is_ended = True
        self._changed.set()

    def close(self) -> None:
        """The consumer takes no more: a producer that waits goes on, and its `put` returns False."""
        self._is_closed = True
        self._permits.release()

    async def __aiter__(self) -> AsyncIterator[Arrays]:
        """The responses as they come, until the end."""
        while True:
            while self._waiting:
                outputs = self._waiting.popleft()
                self._permits.release()
                yield outputs
            if self._is_ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def _arrived(self, outputs: Arrays) -> None:
        self._waiting.append(outputs)
        self._changed.set()
