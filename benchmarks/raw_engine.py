"""Raw onnxruntime in a separate process: the upper bound for any server. It reads one job as a JSON line and prints one line for it.

A job names a model file, a thread count, a file with one row of input, a batch size and how long to run. Batches are made by repeating
the row, before the clock starts. The session is made with the default options of onnxruntime but for the threads, and kept between jobs.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.machine import CpuReading
from benchmarks.models import Array, BenchModel
from benchmarks.processes import JsonChild
from benchmarks.results import Window
from stoker.cli.bench.figures import percentile

_sessions: dict[tuple[str, int, frozenset[int]], ort.InferenceSession] = {}


def _session(model: str, threads: int) -> ort.InferenceSession:
    # The session's threads inherit the cores of this thread.
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
    before = CpuReading.of()
    start = now = time.monotonic_ns()
    end = start + round(job["duration_s"] * 1e9)
    while (now < end or len(latencies) < job.get("min_runs", 3)) and len(latencies) < job.get("max_runs", 200_000):
        session.run(None, feed)
        then, now = now, time.monotonic_ns()
        latencies.append(now - then)
    elapsed_s = (now - start) / 1e9
    after = CpuReading.of()
    cpu_s, ordered = after.own_s - before.own_s, sorted(latencies)
    return {
        "rows_per_s": len(latencies) * job["batch"] / elapsed_s,
        "runs": len(latencies),
        **{f"p{percent}_ms": percentile(ordered, percent) / 1e6 for percent in (50, 95, 99)},
        "max_ms": ordered[-1] / 1e6,
        "cpu_us_per_run": cpu_s / len(latencies) * 1e6,
        "elapsed_s": elapsed_s,
        "foreign_cores": after.foreign_cores_since(before),
    }


def reference(job: dict[str, Any]) -> dict[str, str]:
    """Writes the model's first output for one row to the file `output`."""
    session = _session(job["model"], job["threads"])
    np.save(job["output"], session.run(None, {session.get_inputs()[0].name: np.load(job["row"])})[0])
    return {"output": job["output"]}


class RawEngine:
    """Raw onnxruntime in a child process, with `threads` threads on `cores`."""

    def __init__(self, scratch: Path, threads: int, cores: Sequence[int]) -> None:
        self._scratch = scratch
        self._threads = threads
        self._cores = list(cores)
        self._child = JsonChild("benchmarks.raw_engine", cores=cores)

    def measure(self, model: BenchModel, batch: int, duration_s: float, repeat: int) -> Window:
        """Runs batches of `batch` rows, one after the other."""
        found = self._child.request(self._job(model) | {"batch": batch, "duration_s": duration_s}, duration_s + 60)
        return Window(
            target="onnxruntime", model=model.name, protocol="in-process", load="closed", concurrency=1, rows=batch, repeat=repeat,
            requests=int(found["runs"]), elapsed_s=found["elapsed_s"], requests_per_s=found["runs"] / found["elapsed_s"],
            rows_per_s=found["rows_per_s"], mean_ms=found["elapsed_s"] / found["runs"] * 1e3,
            p50_ms=found["p50_ms"], p95_ms=found["p95_ms"], p99_ms=found["p99_ms"], max_ms=found["max_ms"],
            server_cpu_us=found["cpu_us_per_run"], server_cpu_share=found["cpu_us_per_run"] * found["runs"] / found["elapsed_s"] / 1e6,
            foreign_cores=found["foreign_cores"],
        )  # fmt: skip

    def reference(self, model: BenchModel) -> Array:
        """The model's output for its row."""
        output = self._scratch / f"{model.name}.expected.npy"
        self._child.request(self._job(model) | {"output": str(output)}, 60)
        expected: Array = np.load(output)
        return expected

    def close(self) -> None:
        self._child.close()

    def _job(self, model: BenchModel) -> dict[str, object]:
        row = self._scratch / f"{model.name}.row.npy"
        if not row.exists():
            np.save(row, model.row)
        return {"model": str(model.path), "threads": self._threads, "row": str(row), "cores": self._cores}


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        if job.get("cores"):
            os.sched_setaffinity(0, job["cores"])
        print(json.dumps(reference(job) if "output" in job else measure(job)), flush=True)


if __name__ == "__main__":
    main()
