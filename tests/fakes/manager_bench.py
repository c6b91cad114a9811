"""A model manager with everything around it fake, and a way to run a test inside an event loop."""

import asyncio
import functools
from collections.abc import Callable, Coroutine

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.lifecycle.manager import ModelManager
from stoker.server.lifecycle.settings import ControlMode, LifecycleSettings
from tests.fakes.fake_loader import FakeLoader, FakeModel, FakeRecorder, FakeRepository, turn


class Bench:
    """A manager with everything around it fake."""

    def __init__(
        self,
        models: dict[str, FakeModel],
        *,
        holds: bool = False,
        loader: FakeLoader | None = None,
        mode: ControlMode = ControlMode.POLL,
        **settings,
    ) -> None:
        self.repository = FakeRepository(models)
        self.models = self.repository.models
        self.loader = loader or FakeLoader(holds=holds)
        self.recorder = FakeRecorder()
        self.clock = FakeClock()
        self.settings = LifecycleSettings(control_mode=mode, **settings)
        self.manager = ModelManager(self.repository, self.loader, self.recorder, self.clock, self.settings, watch=False)

    async def started(self) -> "Bench":
        await self.manager.start()
        await turn()
        return self

    async def rescan(self) -> None:
        """Scans twice, a settling time apart, so that the present content is accepted."""
        await self.manager.rescan()
        self.clock.advance(self.settings.settle_s)
        assert await self.manager.rescan()
        await turn()

    def index(self) -> list[tuple[str, int | None, str, str]]:
        return [(e.name, e.version, e.state.value if e.state else "", e.reason) for e in self.manager.index()]

    def assert_nothing_leaks(self) -> None:
        for servable in self.loader.loaded:
            assert servable.retired == 1
            assert servable.closed == 1


def in_loop(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 20))

    return run
