"""Runs a `StreamReactor` on a transport whose streams are coroutines."""

import asyncio
from collections.abc import Mapping

from stoker.server.rpc.method import Begin, StreamCall, StreamReactor


async def pumped(begin: Begin, call: StreamCall) -> None:
    """Handles `call` by the reactor that `begin` makes; returns or raises as a `StreamHandler` does."""
    pump = _Pump(call)
    reactor = begin(pump)
    reader = asyncio.create_task(pump.read(reactor))
    try:
        while (message := await pump.written()) is not None:
            await call.send(message)
            reactor.sent()
    finally:
        reader.cancel()
        reactor.cancel()


class _Pump:
    """A `ReactorCall` that reads in one task and writes in another."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call
        self._may_read = asyncio.Event()
        # At most one response, and the end of the call.
        self._writes: asyncio.Queue[bytes | list[bytes | memoryview] | Exception | None] = asyncio.Queue()

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._call.metadata

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        return self._call.binary_metadata

    @property
    def deadline_ns(self) -> int | None:
        return self._call.deadline_ns

    def cancelled(self) -> bool:
        return self._call.cancelled()

    def add_trailer(self, name: str, value: str | bytes) -> None:
        self._call.add_trailer(name, value)

    def write(self, message: bytes | list[bytes | memoryview]) -> bool:
        self._writes.put_nowait(message)
        return False

    def write_last(self, message: bytes | list[bytes | memoryview]) -> bool:
        return False

    def read_on(self) -> None:
        self._may_read.set()

    def finish(self) -> None:
        self._writes.put_nowait(None)

    def fail(self, error: Exception) -> None:
        self._writes.put_nowait(error)

    async def written(self) -> bytes | list[bytes | memoryview] | None:
        """The next response to send; None: the call has ended.

        Raises:
            Exception: the call has failed by it.
        """
        message = await self._writes.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def read(self, reactor: StreamReactor) -> None:
        """Passes the messages of the client to `reactor`."""
        try:
            await self._read(reactor)
        except Exception as error:  # noqa: BLE001 - a defect ends the call
            self.fail(error)

    async def _read(self, reactor: StreamReactor) -> None:
        while True:
            while not reactor.is_reading:
                self._may_read.clear()
                await self._may_read.wait()
            try:
                data = await self._call.receive()
            except Exception as error:  # noqa: BLE001 - an invalid message
                reactor.ended(error)
                return
            if data is None:
                reactor.ended(None)
                return
            reactor.received(data)
