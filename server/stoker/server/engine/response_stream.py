"""`ResponseStream`: passes the responses of one request from the worker's thread to the event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

from stoker.backends.api.backend import Arrays


class ResponseStream:
    """A bounded queue with one producer, a thread, and one consumer on the event loop.

    INVARIANT: the producer holds one permit of `_permits` for every response that the consumer has not taken; without a free permit it
    waits.
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
        """Adds one response; waits while `most` are unread. Returns False if the consumer has closed the stream. Called in the producer's
        thread.
        """
        self._permits.acquire()
        if self._is_closed:
            return False
        try:
            self._loop.call_soon_threadsafe(self._arrived, outputs)
        except RuntimeError:  # the loop closed first: the process ends, and no consumer is left
            return False
        return True

    def end(self) -> None:
        """Ends the stream; responses that wait can still be taken."""
        self._is_ended = True
        self._changed.set()

    def close(self) -> None:
        """Closes the consumer's side: a producer that waits resumes, and its `put` returns False."""
        self._is_closed = True
        self._permits.release()

    async def __aiter__(self) -> AsyncIterator[Arrays]:
        """Yields the responses until the stream ends."""
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
