"""The response cache as every flavour of tritonclient sees it: equal requests, statistics and the configuration."""

import sys

import numpy as np
from client_flavours import Flavour
from common_checks import Report

flavour, address = sys.argv[1:]
report, client = Report(), Flavour(flavour, address)
MODEL = "cached"
KINDS = ("success", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def read():
    [model] = client("get_inference_statistics", MODEL)["model_stats"]
    stats = model["inference_stats"]
    counts = {kind: int(stats[kind].get("count", 0)) for kind in KINDS}
    times = {kind: int(stats[kind].get("ns", 0)) for kind in KINDS}
    return counts, times, int(model.get("inference_count", 0)), int(model.get("execution_count", 0))


def infer(value, **options):
    tensor = client.module.InferInput("INPUT", [2, 4], "FP32")
    tensor.set_data_from_numpy(np.full([2, 4], value, np.float32))
    result = client("infer", MODEL, [tensor], **options)
    assert result.as_numpy("OUTPUT").tolist() == [[value] * 4] * 2


config = client("get_model_config", MODEL)
config = config.get("config", config)
assert config["response_cache"]["enable"] is True, config
report("config")
counts, times, inferences, executions = read()
# Values of their own for each flavour: the server is one.
base = 100.0 * (1 + ["http", "grpc", "http.aio", "grpc.aio"].index(flavour))
for value in (1, 1, 2, 1):
    infer(base + value, request_id=f"{value}")
after_counts, after_times, after_inferences, after_executions = read()
rose = {kind: after_counts[kind] - counts[kind] for kind in KINDS}
assert rose == {
    "success": 4, "queue": 4, "compute_input": 2, "compute_infer": 2, "compute_output": 2, "cache_hit": 2, "cache_miss": 2
}, rose  # fmt: skip
assert (after_inferences - inferences, after_executions - executions) == (4, 2)
assert after_times["cache_hit"] > times["cache_hit"]
assert after_times["cache_miss"] > times["cache_miss"]
report("counts")
infer(base + 1, parameters={"top": 1})
infer(base + 1, parameters={"top": 1})
last_counts, *_ = read()
assert last_counts["cache_miss"] - after_counts["cache_miss"] == 1
assert last_counts["cache_hit"] - after_counts["cache_hit"] == 1
report("parameters")
client.close()
report.finish()
