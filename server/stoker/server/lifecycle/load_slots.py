"""`LoadSlots`: how many loads run at once, without the slow ones holding up the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

#: From here on a load counts as slow, seconds.
SLOW_S: Final = 10.0


class LoadSlot:
    """What one load holds.

    Attributes:
        is_slow: Whether it has run for `SLOW_S`.
        is_lent: Whether it has given its place to another load.
    """

    __slots__ = ("is_lent", "is_slow")

    def __init__(self) -> None:
        self.is_slow = False
        self.is_lent = False


class LoadSlots:
    """`count` places for loads, and as many again for loads that are slow. Confined to: the event loop.

    A load begins in one of the first; once it is slow it moves to one of the second, if one is free. So at most twice `count` loads run,
    and quick ones wait only while all places of both kinds are held by slow ones.
    """

    def __init__(self, count: int) -> None:
        """All places are free."""
        self._quick = asyncio.Semaphore(count)
        self._slow_free = count
        self._slow: list[LoadSlot] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[LoadSlot]:
        """Waits for a place and holds it."""
        slot = LoadSlot()
        await self._quick.acquire()
        timer = asyncio.get_running_loop().call_later(SLOW_S, self._became_slow, slot)
        try:
            yield slot
        finally:
            timer.cancel()
            if slot.is_slow:
                self._slow.remove(slot)
            if slot.is_lent:
                self._slow_free += 1
                self._move()
            else:
                self._quick.release()

    def _became_slow(self, slot: LoadSlot) -> None:
        slot.is_slow = True
        self._slow.append(slot)
        self._move()

    def _move(self) -> None:
        for slot in self._slow:
            if self._slow_free and not slot.is_lent:
                self._slow_free -= 1
                slot.is_lent = True
                self._quick.release()
