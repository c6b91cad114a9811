"""`Servable`: one loaded version in service. A request borrows it until it is answered; unloading waits for the last borrower."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from stoker.backends.api.files import ModelFiles
from stoker.server.core.model_config import ModelConfig
from stoker.server.core.request import Done, InferRequest, InFlight
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.sequences import SequenceScheduler


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
        scheduler: Scheduler | SequenceScheduler,
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
        #: Runs a request on this version, which stays loaded until it is answered: `Scheduler.submit`, without a method around it.
        self.submit: Callable[[InferRequest, Done, Callable[[], None]], InFlight] = scheduler.submit
        self._files = files
        self._discard = discard
        self._is_retired = False
        self._idle = asyncio.Event()
        scheduler.on_idle = self._notice_idle

    @property
    def borrowers(self) -> int:
        """Requests that hold this version now: accepted, and not yet answered."""
        return self.scheduler.unanswered

    def retire(self) -> None:
        """From now on nobody new will borrow: the manager has taken it out of its table."""
        self._is_retired = True
        self._notice_idle()

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

    def _notice_idle(self) -> None:
        if self._is_retired and not self.scheduler.unanswered:
            self._idle.set()
