"""A large tensor is copied once on its way in, from the message to the batch, and once on its way out, from the batch to the response.

Counted by memory: `tracemalloc` sees every block that numpy and Python allocate, so a needless copy shows as a peak one tensor
higher. The batch's own block is there before, and the model's output is its own.
"""

import asyncio
import tracemalloc

import numpy as np
import pytest

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import Done, InferRequest, InferResponse, InFlight
from stoker.server.core.timers import LoopTimers
from stoker.server.execution.worker import InlineWorker
from stoker.server.net.receive_buffers import message_block
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.scheduling.pending import outcome_of
from stoker.server.scheduling.scheduler import Scheduler
from tests.fakes.fake_engine import FakeEngine, FakeModel
from tests.fakes.puppet_worker import RecorderLog

#: 1 MiB a row of FP32.
SIZE = 1 << 18
ROW_BYTES = 4 * SIZE
#: What all else of a request may take: headers, arrays' heads, tasks.
SLACK_BYTES = ROW_BYTES // 4
SIGNATURE = ModelSignature((TensorSpec("IN", DataType.FP32, (SIZE,)),), (TensorSpec("OUT", DataType.FP32, (SIZE,)),), 4)


class KnownResponse(Instance):
    """Returns prepared outputs, so that no allocation of a model is counted."""

    def __init__(self) -> None:
        self.response = np.zeros((4, SIZE), np.float32)
        self.seen: list[tuple[int, ...]] = []
        self.addresses: list[int] = []

    def execute(self, inputs: Arrays, output_names: object) -> Arrays:
        self.seen.append(inputs["IN"].shape)
        self.addresses.append(inputs["IN"].ctypes.data)
        self.response[: len(inputs["IN"])] = inputs["IN"]
        return {"OUT": self.response[: len(inputs["IN"])]}


class Served(FakeEngine):
    """An engine around one real scheduler and batch processor."""

    def __init__(self, instance: Instance) -> None:
        config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=SIGNATURE,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
            dynamic_batching=DynamicBatching(),
        )
        super().__init__(FakeModel(config, lambda inputs: inputs))
        clock = SystemClock()
        self.scheduler = Scheduler(
            config,
            1,
            [InlineWorker(instance, SIGNATURE, clock)],
            clock=clock,
            timers=LoopTimers(asyncio.get_running_loop(), clock),
            recorder=RecorderLog(),
            max_queue_size=10,
        )

    def submit(self, request: InferRequest, done: Done) -> InFlight:
        return self.scheduler.submit(request, done)

    async def infer(self, request: InferRequest) -> InferResponse:
        return await outcome_of(self.submit, request)


def asked(value: float, version: str = "") -> bytes:
    message = pb.ModelInferRequest(model_name="m", model_version=version)
    message.inputs.add(name="IN", datatype="FP32", shape=[1, SIZE])
    message.raw_input_contents.append(np.full((1, SIZE), value, np.float32).tobytes())
    return message.SerializeToString()


async def responses(inference: Inference, requests: list[bytes]) -> list[bytes]:
    return await asyncio.gather(*(inference.model_infer(data, None) for data in requests))


# By the template of the requests before, and decoded in full, which shows what asks for the version by its number.
@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("requests", [1, 4])
def test_large_tensor_is_copied_once_into_the_batch_and_once_out_of_it(requests, version):
    async def scenario() -> None:
        instance = KnownResponse()
        # Large answers would be made in a thread, which counts the same and takes longer to warm up.
        inference = Inference(Served(instance), Limits(decode_inline_bytes=1 << 30))
        messages = [asked(float(number)) for number in range(requests)]
        await responses(inference, messages)
        messages = [asked(float(number), version) for number in range(requests)]
        instance.seen.clear()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            found = await responses(inference, messages)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert instance.seen == [(requests, SIZE)], "one batch"
        # In: the block of the batch was there before, so that its copy allocates nothing. Out: each answer is one copy, and stays.
        assert peak - before <= requests * ROW_BYTES + SLACK_BYTES
        assert after - before >= requests * ROW_BYTES
        for number, data in enumerate(found):
            message = pb.ModelInferResponse.FromString(data)
            assert np.frombuffer(message.raw_output_contents[0], np.float32).tolist()[:: SIZE // 4] == [float(number)] * 4

    asyncio.run(scenario())


def test_single_large_tensor_is_used_from_its_receive_buffer():
    async def scenario() -> None:
        instance = KnownResponse()
        inference = Inference(Served(instance), Limits(decode_inline_bytes=1 << 30))
        data = asked(7.0)
        where = []
        # The first is parsed, the second tells where the tensor begins, and then it is known before a message comes.
        for _ in range(3):
            view = message_block(len(data), inference.lead_bytes(len(data)))
            view[:] = data
            response = pb.ModelInferResponse.FromString(await inference.start(view.toreadonly(), None).outcome())
            assert np.frombuffer(response.raw_output_contents[0], np.float32)[-1] == 7.0
            where.append(np.frombuffer(view, np.uint8).ctypes.data + len(data) - ROW_BYTES)
        assert inference.lead_bytes(len(data)) == len(data) - ROW_BYTES
        assert instance.addresses[-1] == where[-1]

    asyncio.run(scenario())
