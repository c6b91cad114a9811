import asyncio
import sys

import tritonclient.http.aio as module
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
    check_metadata(await client.get_model_metadata("simple"))
    report("metadata")
    check_config(await client.get_model_config("simple"))
    report("config")
    check_index(await client.get_model_repository_index())
    report("index")
    for binary in (True, False):
        check_simple(await client.infer("simple", simple_inputs(module, binary)))
        report(f"infer-{'binary' if binary else 'json'}")
    image = module.InferInput("image", [3, 8, 8], "FP32")
    image.set_data_from_numpy(IMAGES)
    results = await asyncio.gather(*(client.infer("digits", [image]) for _ in range(8)))
    for result in results:
        check_digits(result.as_numpy("scores"))
    report("concurrent")
    check_statistics(await client.get_inference_statistics("simple"))
    report("statistics")
    await client.unload_model("simple")
    assert not await client.is_model_ready("simple")
    await client.load_model("simple")
    check_simple(await client.infer("simple", simple_inputs(module)))
    report("load-unload")
    await client.close()


asyncio.run(main())
report.finish()
