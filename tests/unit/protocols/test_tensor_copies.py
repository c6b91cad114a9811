"""A large tensor is copied once on its way in, from the message to the batch, and once on its way out, from the batch to the response,
and not at all if its request is alone in the batch.

Counted by memory: `tracemalloc` sees every block that numpy and Python allocate, so a needless copy shows as a peak one tensor
higher. The batch's own block is there before, and the model's output is its own.
"""

import asyncio
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import Serialised, whole
from stoker.server.core.completion import Completion
from stoker.server.core.limits import Limits
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import Array, Done, InferRequest, InferResponse, InFlight
from stoker.server.core.timers import LoopTimers
from stoker.server.execution.worker import InlineWorker
from stoker.server.net.receive_buffers import message_block
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.adlik import predict as adlik_predict
from stoker.server.protocols.adlik.request import ModelQuery, PredictionResponse, ResponseOutput
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.tfs import model_spec as tfs_spec
from stoker.server.protocols.tfs import predict as tfs_predict
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


async def responses(inference: Inference, requests: list[bytes], *, are_streamed: bool = False) -> list[Serialised]:
    started: list[Completion[Serialised]] = []
    for data in requests:
        completion = inference.start_streamed(data, None, None) if are_streamed else inference.start(data, None)
        assert completion is not None
        started.append(completion)
    return await asyncio.gather(*(completion.outcome() for completion in started))


def parsed(response: Serialised, *, is_streamed: bool = False) -> pb.ModelInferResponse:
    if is_streamed:
        return pb.ModelStreamInferResponse.FromString(whole(response)).infer_response
    return pb.ModelInferResponse.FromString(whole(response))


# By the template of the requests before, and decoded in full, which shows what asks for the version by its number.
@pytest.mark.parametrize(("version", "are_streamed"), [("", False), ("1", False), ("", True)])
@pytest.mark.parametrize("requests", [1, 4])
def test_large_tensor_is_copied_once_into_the_batch_and_once_out_of_it(requests, version, are_streamed):
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
            found = await responses(inference, messages, are_streamed=are_streamed)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert instance.seen == [(requests, SIZE)], "one batch"
        # In: the block of the batch was there before, so that its copy allocates nothing. Out: each answer is one copy, and stays.
        assert peak - before <= requests * ROW_BYTES + SLACK_BYTES
        assert after - before >= requests * ROW_BYTES
        for number, data in enumerate(found):
            message = parsed(data, is_streamed=are_streamed)
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
            response = pb.ModelInferResponse.FromString(whole(await inference.start(view.toreadonly(), None).outcome()))
            assert np.frombuffer(response.raw_output_contents[0], np.float32)[-1] == 7.0
            where.append(np.frombuffer(view, np.uint8).ctypes.data + len(data) - ROW_BYTES)
        assert inference.lead_bytes(len(data)) == len(data) - ROW_BYTES
        assert instance.addresses[-1] == where[-1]

    asyncio.run(scenario())


def tfs_printed(array: Array) -> Serialised:
    return tfs_predict.print_response(InferResponse("m", 1, "", {"OUT": array}, SIGNATURE), tfs_spec.ModelQuery("m"))


def adlik_printed(array: Array) -> Serialised:
    output = ResponseOutput("OUT", DataType.FP32, array, [])
    return adlik_predict.print_response(PredictionResponse(ModelQuery("m"), [output]))


class FreshResponse(Instance):
    """Returns an output made beforehand, which it does not write to again."""

    def __init__(self) -> None:
        self.response = np.full((1, SIZE), 3.0, np.float32)

    def execute(self, inputs: Arrays, output_names: object) -> Arrays:
        return {"OUT": self.response}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_large_output_of_a_request_that_is_alone_in_its_batch_is_sent_without_a_copy(is_streamed: bool):
    async def scenario() -> None:
        instance = FreshResponse()
        inference = Inference(Served(instance), Limits())
        message = asked(1.0)
        await responses(inference, [message])
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            (found,) = await responses(inference, [message], are_streamed=is_streamed)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak - before < SLACK_BYTES
        assert isinstance(found, list)
        assert any(np.shares_memory(np.frombuffer(piece, np.uint8), instance.response) for piece in found)
        assert parsed(found, is_streamed=is_streamed).raw_output_contents[0] == instance.response.tobytes()

    asyncio.run(scenario())


@pytest.mark.parametrize("print_response", [tfs_printed, adlik_printed])
@pytest.mark.parametrize("rows", [1, 4])
def test_large_output_of_predict_is_a_view_unless_it_is_a_part_of_a_batch(print_response: Callable[[Array], Serialised], rows: int):
    batch = np.arange(rows * SIZE, dtype=np.float32).reshape(rows, SIZE)
    tracemalloc.start()
    try:
        found = print_response(batch[:1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(found, list)
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), batch) for piece in found) is (rows == 1)
    assert peak < (rows > 1) * ROW_BYTES + SLACK_BYTES
    assert batch[:1].tobytes() in whole(found)
