"""`EventLoopThread`: an asyncio event loop in a thread of its own, for models with `async` methods."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")
#: Bound on the wait for the thread's end, seconds.
_END_TIMEOUT_S: Final = 5.0
_DONE = object()


class EventLoopThread:
    """Runs coroutines of one model. `run` may be called in any other thread, in several at once."""

    def __init__(self, name: str) -> None:
        """Starts the thread `name`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs `coroutine` and waits for its result.

        Raises:
            Exception: the coroutine raised it.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async generator, which is closed when the iterator is closed."""
        try:
            while (item := self.run(_next(items))) is not _DONE:
                yield item
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                self.run(close())

    def close(self) -> None:
        """Cancels what runs and ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_TIMEOUT_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _next(items: AsyncIterator[T]) -> Any:
    try:
        return await items.__anext__()
    except StopAsyncIteration:
        return _DONE
