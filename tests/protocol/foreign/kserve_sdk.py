"""KServe's own inference clients, REST and gRPC, against HTTP_HOST:PORT GRPC_HOST:PORT; prints each check that held."""

import asyncio
import sys

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

A, B = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 3, np.int32)
IMAGES = np.arange(128, dtype=np.float32).reshape(2, 8, 8) % 17


def simple(*, binary: bool, outputs: bool = False) -> InferRequest:
    inputs = []
    for name, array in (("INPUT0", A), ("INPUT1", B)):
        inputs.append(InferInput(name, [1, 16], "INT32"))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    wanted = [RequestedOutput("OUTPUT1", {"binary_data": binary}), RequestedOutput("OUTPUT0", {"binary_data": binary})] if outputs else None
    return InferRequest(model_name="simple", infer_inputs=inputs, request_id="k1", request_outputs=wanted)


def check(answer) -> None:
    assert (answer.model_name, answer.id) == ("simple", "k1"), answer
    np.testing.assert_array_equal(answer.get_output_by_name("OUTPUT0").as_numpy(), A + B)
    np.testing.assert_array_equal(answer.get_output_by_name("OUTPUT1").as_numpy(), A - B)


async def rest(address: str) -> None:
    client, base = InferenceRESTClient(RESTConfig(protocol="v2", retries=1)), f"http://{address}"
    assert await client.is_server_live(base) is True
    assert await client.is_server_ready(base) is True
    assert await client.is_model_ready(base, "simple") is True
    assert await client.is_model_ready(base, "ghost") is False
    print("rest-health")
    for binary in (False, True):
        for outputs in (False, True):
            check(await client.infer(base, simple(binary=binary, outputs=outputs), model_name="simple"))
    images = InferInput("image", [2, 8, 8], "FP32")
    images.set_data_from_numpy(IMAGES, binary_data=True)
    answer = await client.infer(base, InferRequest(model_name="digits_ipu", infer_inputs=[images]), model_name="digits_ipu")
    assert answer.get_output_by_name("scores").as_numpy().shape == (2, 10)
    print("rest-infer")
    refused = None
    try:
        await client.infer(base, simple(binary=False), model_name="ghost")
    except httpx.HTTPStatusError as error:
        refused = error
    assert refused is not None
    assert refused.response.status_code == 400, refused
    assert str(refused).startswith("Request for unknown model: 'ghost' is not found"), refused
    print("rest-error")
    await client.close()
    client = InferenceRESTClient(RESTConfig(protocol="v1", retries=1))
    answer = await client.infer(base, {"instances": IMAGES.tolist()}, model_name="digits_ipu")
    assert np.shape(answer["predictions"]) == (2, 10)
    print("rest-v1")
    await client.close()


async def over_grpc(address: str) -> None:
    client = InferenceGRPCClient(address)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("simple")
    assert not await client.is_model_ready("ghost")
    print("grpc-health")
    for binary in (False, True):
        check(await client.infer(simple(binary=binary)))
    print("grpc-infer")
    refused = None
    request = simple(binary=True)
    request.model_name = "ghost"
    try:
        await client.infer(request)
    except grpc.RpcError as error:
        refused = error.code()
    assert refused is grpc.StatusCode.NOT_FOUND, refused
    print("grpc-error")
    await client.close()


asyncio.run(rest(sys.argv[1]))
asyncio.run(over_grpc(sys.argv[2]))
