"""A model over two simulated cards continues when one is lost: the scheduler ejects it and probes it now and then."""

import asyncio
from collections.abc import Callable

import numpy as np

from stoker.backends.api.errors import Unavailable
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import same_in_and_out
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import InferRequest, InferResponse
from stoker.server.execution.worker import ThreadWorker
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.worker_pool import FIRST_EJECTION_NS
from tests.fakes.gcu_backend import CardBench
from tests.fakes.gcu_served import doubling
from tests.fakes.puppet_worker import HandTimers, RecorderLog

SERVED = same_in_and_out(DataType.FP32, max_batch_size=4)


class Rig:
    """A scheduler over one instance on each of two cards, with time controlled by the test."""

    def __init__(self, bench: CardBench) -> None:
        self.time, self.log = HandTimers(), RecorderLog()
        loop = asyncio.get_running_loop()
        instances = [bench.load(doubling(), SERVED, name=f"on{card}", card=card) for card in range(2)]
        # The workers close them.
        bench.instances.clear()
        workers = [ThreadWorker(f"w{card}", instance, SERVED, self.time, loop) for card, instance in enumerate(instances)]
        config = ModelConfig(
            name="m",
            backend="topsinference",
            platform="topsinference",
            signature=SERVED,
            model_filename="model.exec",
            instance_groups=(InstanceGroup(name="m", count=1, kind="KIND_GPU", gpus=(0, 1)),),
            dynamic_batching=DynamicBatching(),
        )
        self.scheduler = Scheduler(config, 1, workers, clock=self.time, timers=self.time, recorder=self.log, max_queue_size=10)

    async def ask(self, value: float) -> "InferResponse | Unavailable":
        inputs = {"x": np.full((1, 2), value, np.float32)}
        request = InferRequest(model_name="m", inputs=inputs, output_names=("y",), signature=SERVED)
        asked = asyncio.ensure_future(self.scheduler.infer(request))
        await asyncio.sleep(0)
        self.time.run()
        try:
            return await asyncio.wait_for(asked, 10)
        except Unavailable as error:
            return error

    async def responses(self, count: int) -> list[bool]:
        found = [(value, await self.ask(value)) for value in range(1, count + 1)]
        return [isinstance(each, InferResponse) and each.outputs["y"].tolist() == [[2 * value, 2 * value]] for value, each in found]


def test_lost_card_gets_one_request_and_one_for_each_probe(bench_with: Callable[..., CardBench]) -> None:
    async def scenario() -> None:
        rig = Rig(bench_with(cards="2", faults="lost@1"))
        assert await rig.responses(20) == [False] + [True] * 19
        assert rig.log.ejected_counts == [1]
        rig.time.now += FIRST_EJECTION_NS
        assert await rig.responses(20) == [False] + [True] * 19, "the probe finds it lost still"
        rig.time.now += FIRST_EJECTION_NS
        assert await rig.responses(5) == [True] * 5, "the pause is twice as long now"
        await rig.scheduler.close()

    asyncio.run(scenario())


def test_reset_card_serves_again_after_its_probe(bench_with: Callable[..., CardBench]) -> None:
    async def scenario() -> None:
        rig = Rig(bench_with(cards="2", faults="reset@1"))
        assert await rig.responses(5) == [False] + [True] * 4
        rig.time.now += FIRST_EJECTION_NS
        assert await rig.responses(5) == [True] * 5
        assert rig.log.ejected_counts == [1, 0]
        await rig.scheduler.close()

    asyncio.run(scenario())
