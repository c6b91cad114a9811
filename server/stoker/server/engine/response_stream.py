"""`responses_of`: yields the responses of one request, which a `ResponseStream` passes from the worker's thread to the event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import cast

from stoker.backends.api.backend import Arrays
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ServingError
from stoker.backends.api.response_parameters import parameters_of
from stoker.server.core.request import Done, EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.core.tasks import Waiter
from stoker.server.lifecycle.servable import Servable
from stoker.server.observability.metrics import Metrics
from stoker.server.scheduling.pending import outcome_of

#: Responses of one request that may wait in its stream before the model waits too.
UNFLUSHED_RESPONSES = 16


class ResponseStream:
    """A bounded queue with one consumer, on the event loop, and one producer: a thread (`put`), or a process or an ensemble (`feed`).

    INVARIANT: the producer holds one permit of `_permits` for every response that the consumer has not taken; without a free permit it
    waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        """Holds at most `most` responses that the consumer has not taken."""
        self._loop = loop
        self._permits = threading.Semaphore(most)
        #: Each response, and what to call when the consumer takes it (None: it returns a permit).
        self._waiting: deque[tuple[Arrays, Callable[[], None] | None]] = deque()
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

    def feed(self, outputs: Arrays, taken: Callable[[], None]) -> None:
        """Adds one response, for a producer that bounds by itself how many are unread: `taken` is called when the consumer takes it. Called
        on the event loop.
        """
        if self._is_closed:
            taken()
            return
        self._waiting.append((outputs, taken))
        self._changed.set()

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
                outputs, taken = self._waiting.popleft()
                if taken is None:
                    self._permits.release()
                else:
                    taken()
                yield outputs
            if self._is_ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def _arrived(self, outputs: Arrays) -> None:
        self._waiting.append((outputs, None))
        self._changed.set()


async def responses_of(
    request: InferRequest, submit: Callable[[InferRequest, Done], InFlight], metrics: Metrics, clock: Clock
) -> AsyncGenerator[InferResponse, None]:
    """Submits `request` and yields its responses: one, or any number from a decoupled model. Closing the generator cancels the request.

    Raises:
        ServingError: as `submit` raises or reports.
    """
    if not request.signature.is_decoupled:
        yield await outcome_of(submit, request)
        return
    servable = cast("Servable", request.servable)
    version = servable.version
    counts = metrics.version(request.model_name, version, servable.config.metric_tags).responses
    position, last_ns = 0, clock.now_ns()
    responses = ResponseStream(asyncio.get_running_loop(), UNFLUSHED_RESPONSES)
    request.responses = responses
    waiter = Waiter[InferResponse]()

    def done(outcome: EngineResult) -> None:
        waiter(outcome)
        responses.end()

    flight: InFlight | None = None
    try:
        flight = submit(request, done)
        async for outputs in responses:
            now_ns = clock.now_ns()
            counts.completed(position, now_ns - last_ns)
            position, last_ns = position + 1, now_ns
            yield InferResponse(
                model_name=request.model_name,
                model_version=version,
                request_id=request.request_id,
                outputs=dict(outputs),
                signature=request.signature,
                parameters=parameters_of(outputs),
            )
        await waiter.outcome()
        counts.ended(position, clock.now_ns() - last_ns)
    except ServingError:
        counts.failed(position, clock.now_ns() - last_ns)
        raise
    except (asyncio.CancelledError, GeneratorExit):
        counts.cancelled(position, clock.now_ns() - last_ns)
        raise
    finally:
        responses.close()
        if flight is not None:
            flight.cancel()
