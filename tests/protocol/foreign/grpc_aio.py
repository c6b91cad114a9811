import asyncio
import sys

import tritonclient.grpc.aio as module
from common_checks import (
    IMAGES,
    Report,
    check_config,
    check_digits,
    check_index,
    check_metadata,
    check_simple,
    check_statistics,
    simple_inputs,
)  # fmt: skip

report = Report()


async def main():
    client = module.InferenceServerClient(sys.argv[1])
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("simple")
    report("health")
    check_metadata(await client.get_model_metadata("simple", as_json=True))
    report("metadata")
    check_config((await client.get_model_config("simple", as_json=True))["config"])
    report("config")
    check_index((await client.get_model_repository_index(as_json=True))["models"])
    report("index")
    check_simple(await client.infer("simple", simple_inputs(module)))
    report("infer")
    image = module.InferInput("image", [3, 8, 8], "FP32")
    image.set_data_from_numpy(IMAGES)
    results = await asyncio.gather(*(client.infer("digits", [image]) for _ in range(8)))
    for result in results:
        check_digits(result.as_numpy("scores"))
    report("concurrent")

    async def requests():
        for number in range(4):
            yield {"model_name": "simple", "inputs": simple_inputs(module), "request_id": str(number)}

    seen = []
    async for result, error in client.stream_infer(requests()):
        assert error is None, error
        check_simple(result)
        seen.append(result.get_response().id)
    assert seen == ["0", "1", "2", "3"], seen
    report("stream")
    check_statistics(await client.get_inference_statistics("simple", as_json=True))
    report("statistics")
    await client.unload_model("simple")
    assert not await client.is_model_ready("simple")
    await client.load_model("simple")
    check_simple(await client.infer("simple", simple_inputs(module)))
    report("load-unload")
    await client.close()


asyncio.run(main())
report.finish()
