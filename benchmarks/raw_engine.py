"""Raw onnxruntime in a process of its own: the upper bound that no server passes. Takes one job a line as JSON, answers with one line.

A job names a model file, a thread count, a file with one row of input, a batch size and how long to run. Batches are made by repeating
the row, before the clock starts. The session is made with the default options of onnxruntime but for the threads, and kept between jobs.
"""

import json
import os
import sys
import time
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.latency import summarise
from benchmarks.process_tree import machine_cpu_s

_sessions: dict[tuple[str, int, frozenset[int]], ort.InferenceSession] = {}


def _session(model: str, threads: int) -> ort.InferenceSession:
    # The session's threads keep to the cores that this one had when it made them.
    key = (model, threads, frozenset(os.sched_getaffinity(0)))
    if key not in _sessions:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        _sessions[key] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return _sessions[key]


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Runs the model for `duration_s`, at least `min_runs` and at most `max_runs` times.

    Returns:
        rows_per_s, runs, p50_ms, p95_ms, p99_ms, max_ms, cpu_us_per_run, elapsed_s, foreign_cores.
    """
    session = _session(job["model"], job["threads"])
    row: np.ndarray[Any, Any] = np.load(job["row"])
    feed = {session.get_inputs()[0].name: np.repeat(row, job["batch"], axis=0)}
    for _ in range(job.get("warmup_runs", 2)):
        session.run(None, feed)
    latencies: list[int] = []
    cpu0, machine0 = time.process_time(), machine_cpu_s()
    start = now = time.monotonic_ns()
    end = start + round(job["duration_s"] * 1e9)
    while (now < end or len(latencies) < job.get("min_runs", 3)) and len(latencies) < job.get("max_runs", 200_000):
        session.run(None, feed)
        then, now = now, time.monotonic_ns()
        latencies.append(now - then)
    elapsed_s = (now - start) / 1e9
    cpu_s, machine_s = time.process_time() - cpu0, machine_cpu_s() - machine0
    latency = summarise(latencies)
    return {
        "rows_per_s": len(latencies) * job["batch"] / elapsed_s,
        "runs": len(latencies),
        "p50_ms": latency.p50_ms,
        "p95_ms": latency.p95_ms,
        "p99_ms": latency.p99_ms,
        "max_ms": latency.max_ms,
        "cpu_us_per_run": cpu_s / len(latencies) * 1e6,
        "elapsed_s": elapsed_s,
        "foreign_cores": max(0.0, machine_s - cpu_s) / elapsed_s,
    }


def reference(job: dict[str, Any]) -> dict[str, str]:
    """Writes the model's first output for one row to the file `output`."""
    session = _session(job["model"], job["threads"])
    np.save(job["output"], session.run(None, {session.get_inputs()[0].name: np.load(job["row"])})[0])
    return {"output": job["output"]}


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        if job.get("cores"):
            os.sched_setaffinity(0, job["cores"])
        print(json.dumps(reference(job) if "output" in job else measure(job)), flush=True)


if __name__ == "__main__":
    main()
