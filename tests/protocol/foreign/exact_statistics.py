"""Statistics as every flavour of tritonclient reads them: each count rises by exactly the number of requests."""

import sys
import time

import numpy as np
from client_flavours import Flavour
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException

flavour, address = sys.argv[1:]
report, client = Report(), Flavour(flavour, address)
MODEL = "echo_fp32"
KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def read():
    [model] = client("get_inference_statistics", MODEL)["model_stats"]
    stats = model["inference_stats"]
    durations = {kind: (int(stats[kind].get("count", 0)), int(stats[kind].get("ns", 0))) for kind in KINDS}
    batches = {int(each["batch_size"]): int(each["compute_infer"].get("count", 0)) for each in model.get("batch_stats", [])}
    counts = [int(model.get(name, 0)) for name in ("inference_count", "execution_count", "last_inference")]
    return durations, batches, counts


def infer(rows, dtype="FP32"):
    tensor = client.module.InferInput("INPUT", [rows, 4], dtype)
    tensor.set_data_from_numpy(np.zeros([rows, 4], {"FP32": np.float32, "INT32": np.int32}[dtype]))
    client("infer", MODEL, [tensor])


before, batches_before, counts_before = read()
report("read")
for rows in (1, 2, 2, 3):
    infer(rows)
for _ in range(2):
    expect_error(lambda: infer(1, "INT32"), InferenceServerException, "data-type is 'INT32', but model 'echo_fp32' expects 'FP32'")
after, batches, counts = read()
rose = {kind: after[kind][0] - before[kind][0] for kind in KINDS}
expected = dict.fromkeys(KINDS, 4) | {"fail": 2, "cache_hit": 0, "cache_miss": 0}
assert rose == expected, rose
report("counts")
assert counts[0] - counts_before[0] == 8, counts
assert counts[1] - counts_before[1] == 4, counts
assert {size: batches[size] - batches_before.get(size, 0) for size in (1, 2, 3)} == {1: 1, 2: 2, 3: 1}, batches
assert sum(batches.values()) == counts[1]
report("batches")
spent = {kind: after[kind][1] - before[kind][1] for kind in KINDS}
assert spent["success"] >= spent["queue"] + spent["compute_input"] + spent["compute_infer"] + spent["compute_output"] > 0, spent
assert abs(counts[2] / 1000 - time.time()) < 60, counts
report("times")
client.close()
report.finish()
