"""Instances without a worker process: requests wait for a restart, use the other instances, or fail at once."""

import pytest

from stoker.backends.api.errors import Unavailable
from stoker.server.execution.worker import Work
from tests.fakes.puppet_worker import PuppetWorker
from tests.unit.scheduling.test_scheduler import Rig, run


class Lost:
    """A worker whose instance is out of service until `returns`."""

    def __init__(self, *, is_ejected: bool) -> None:
        self.inner = PuppetWorker()
        self.outage = "instance 'm_0' is ejected" if is_ejected else "instance 'm_0' is being started again"
        self.is_ejected = is_ejected

    @property
    def free_slots(self) -> int:
        return 0 if self.outage else self.inner.free_slots

    def returns(self) -> None:
        self.outage = ""
        self.is_ejected = False

    def submit(self, work: Work) -> None:
        assert not self.outage
        self.inner.submit(work)

    def cancel(self, work: Work, index: int) -> None:
        raise AssertionError

    async def close(self) -> None:
        return None


def test_requests_wait_for_the_restart_of_the_only_instance():
    async def scenario() -> None:
        worker = Lost(is_ejected=False)
        rig = Rig(only=worker)
        asked = await rig.ask()
        rig.time.advance(1_000_000)
        assert not asked.done()
        assert rig.scheduler.outage
        assert not rig.scheduler.is_lost
        worker.returns()
        rig.scheduler.wake()
        rig.time.run()
        worker.inner.finish()
        await asked
        assert rig.scheduler.outage == ""

    run(scenario())


def test_requests_fail_at_once_while_the_only_instance_is_ejected():
    async def scenario() -> None:
        worker = Lost(is_ejected=False)
        rig = Rig(only=worker)
        waiting = await rig.ask()
        worker.is_ejected = True
        rig.scheduler.wake()
        rig.time.run()
        with pytest.raises(Unavailable, match="has no instance in service: instance 'm_0'"):
            await waiting
        later = await rig.ask()
        rig.time.run()
        with pytest.raises(Unavailable):
            await later
        assert rig.log.failures == ["OTHER", "OTHER"]
        assert rig.log.queue_depth == 0
        assert rig.scheduler.in_flight == 0
        worker.returns()
        served = await rig.ask()
        rig.time.run()
        worker.inner.finish()
        await served

    run(scenario())


def test_requests_of_a_model_with_another_instance_never_reach_the_ejected_one():
    async def scenario() -> None:
        rig = Rig(workers=2)
        lost, well = rig.workers
        lost.is_ejected = True
        lost.outage = "instance 'm_0' is ejected"
        lost._slots = 0
        for _ in range(20):
            asked = await rig.ask()
            rig.time.advance(10_000_000)
            assert lost.works == []
            well.finish()
            await asked
        assert rig.scheduler.outage == ""
        assert not rig.scheduler.is_lost
        assert rig.log.failures == []

    run(scenario())
