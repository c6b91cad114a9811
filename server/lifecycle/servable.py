"""`Servable`: one loaded version in service. A request borrows it; unloading waits for the last borrower."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from backends.api.files import ModelFiles
from server.core.model_config import ModelConfig
from server.core.request import InferRequest, InferResponse
from server.scheduling.scheduler import Scheduler


class ServableHandle:
    """A borrowed servable: `async with servable.borrow() as handle: await handle.infer(request)`."""

    __slots__ = ("_servable",)

    def __init__(self, servable: "Servable") -> None:
        self._servable = servable

    async def __aenter__(self) -> "ServableHandle":
        self._servable._borrowers += 1
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._servable._give_back()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Runs a request on this version; raises as `Scheduler.infer`."""
        return await self._servable.scheduler.infer(request)


class Servable:
    """A version that was loaded and warmed. Confined to: the event loop.

    INVARIANT: instances close, and the snapshot goes, only after `retire` was called and the last borrower has given it back.

    Attributes:
        name: Model name.
        version: Version number.
        config: Completed configuration.
        scheduler: Queue and workers.
        labels: Class labels by output name.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        scheduler: Scheduler,
        files: ModelFiles,
        labels: Mapping[str, Sequence[str]],
        discard: Callable[[ModelFiles], None],
    ) -> None:
        """`discard` removes the snapshot; it may block and is called in a thread."""
        self.name = config.name
        self.version = version
        self.config = config
        self.scheduler = scheduler
        self.labels = labels
        self._files = files
        self._discard = discard
        self._borrowers = 0
        self._is_retired = False
        self._idle = asyncio.Event()

    @property
    def borrowers(self) -> int:
        """Requests that hold this version now."""
        return self._borrowers

    def borrow(self) -> ServableHandle:
        """A handle that keeps this version loaded until it is given back."""
        return ServableHandle(self)

    def retire(self) -> None:
        """From now on nobody new will borrow: the manager has taken it out of its table."""
        self._is_retired = True
        if self._borrowers == 0:
            self._idle.set()

    def abandon(self, why: str) -> None:
        """Answers every request it holds as UNAVAILABLE with `why`, at once."""
        self.scheduler.abandon(why)

    async def drained(self) -> None:
        """Waits for the last borrower, then closes the instances and removes the snapshot. REQUIRES: `retire` was called."""
        await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Closes at once; requests that still wait are answered UNAVAILABLE. For a shutdown whose time has run out."""
        await self.scheduler.close()
        await asyncio.get_running_loop().run_in_executor(None, self._discard, self._files)

    def _give_back(self) -> None:
        self._borrowers -= 1
        if self._is_retired and self._borrowers == 0:
            self._idle.set()
