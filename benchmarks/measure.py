"""One window at a time: asks the load generator or raw onnxruntime, and turns the answer into a `Window`."""

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.load import DRAIN_S, LoadJob
from benchmarks.models import Array, BenchModel
from benchmarks.processes import JsonChild
from benchmarks.results import Window
from benchmarks.servers import Target
from benchmarks.wire import GRPC, decode_response, encode_request

_MIB = 2**20


class WrongResponse(RuntimeError):
    """A server's answer is not the model's, or too many requests failed: its figures would mean nothing."""


class RawEngine:
    """Raw onnxruntime in its process, `threads` of it on `cores`."""

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
            rows_per_s=found["rows_per_s"], p50_ms=found["p50_ms"], p95_ms=found["p95_ms"], p99_ms=found["p99_ms"], max_ms=found["max_ms"],
            server_cpu_us=found["cpu_us_per_run"], server_cpu_share=found["cpu_us_per_run"] * found["runs"] / found["elapsed_s"] / 1e6,
            foreign_cores=found["foreign_cores"],
        )  # fmt: skip

    def reference(self, model: BenchModel) -> Array:
        """The model's answer to its row."""
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


class LoadGenerator:
    """The load generator in its process."""

    def __init__(self, scratch: Path, warmup_s: float) -> None:
        self._scratch = scratch
        self._warmup_s = warmup_s
        self._child = JsonChild("benchmarks.load")

    def closed(
        self, target: Target, model: BenchModel, protocol: str, concurrency: int, *, duration_s: float, repeat: int, cores: Sequence[int]
    ) -> Window:
        """A closed loop.

        Raises:
            WrongResponse: more than 1 % of the requests failed.
        """
        job = self._job(target, model, protocol, duration_s, cores, concurrency=concurrency)
        return self._run(job, target, model, protocol, repeat, load_factor=0.0)

    def open(
        self, target: Target, model: BenchModel, protocol: str, capacity_per_s: float, load_factor: float, *, duration_s: float,
        repeat: int, cores: Sequence[int],
    ) -> Window:  # fmt: skip
        """An open loop at `load_factor` of `capacity_per_s`.

        Raises:
            WrongResponse: as `closed`.
        """
        job = self._job(target, model, protocol, duration_s, cores, rate_per_s=capacity_per_s * load_factor)
        return self._run(job, target, model, protocol, repeat, load_factor=load_factor)

    def check(self, target: Target, model: BenchModel, protocol: str, expected: Array) -> None:
        """Asks once and compares the answer with `expected`.

        Raises:
            WrongResponse: it differs by more than rounding.
        """
        job = dataclasses.replace(self._job(target, model, protocol, 0.0, (), concurrency=1), warmup_s=0.0, max_requests=1)
        reply = base64.b64decode(self._child.request(dataclasses.asdict(job), 3 * DRAIN_S)["reply"])
        try:
            found = decode_response(reply, protocol)
        except (ValueError, KeyError, IndexError) as error:
            raise WrongResponse(f"{target.name} {model.name} over {protocol}: {error!r} in {reply[:300]!r}") from error
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-3, atol=1e-4):
            raise WrongResponse(
                f"{target.name} {model.name} over {protocol}: expected {expected.ravel()[:4]}..., got {found.ravel()[:4]}..."
            )

    def close(self) -> None:
        self._child.close()

    def _job(
        self, target: Target, model: BenchModel, protocol: str, duration_s: float, cores: Sequence[int], *, concurrency: int = 0,
        rate_per_s: float = 0.0,
    ) -> LoadJob:  # fmt: skip
        payload = self._scratch / f"{model.name}.{protocol}"
        if not payload.exists():
            payload.write_bytes(encode_request(model, protocol))
        return LoadJob(
            transport="grpc" if protocol == GRPC else "http",
            port=target.grpc_port if protocol == GRPC else target.http_port,
            payload=str(payload),
            watch_pid=target.pid,
            cores=tuple(cores),
            concurrency=concurrency,
            rate_per_s=rate_per_s,
            warmup_s=self._warmup_s,
            duration_s=duration_s,
        )

    def _run(self, job: LoadJob, target: Target, model: BenchModel, protocol: str, repeat: int, *, load_factor: float) -> Window:
        found = self._child.request(dataclasses.asdict(job), job.warmup_s + job.duration_s + 4 * DRAIN_S)
        completed, elapsed_s = found["completed"], found["elapsed_s"]
        if found["gave_up"] or completed == 0 or found["errors"] > 0.01 * completed:
            raise WrongResponse(
                f"{target.name} {model.name} over {protocol}, {job.concurrency or f'{job.rate_per_s:.0f}/s'}:"
                f" {found['errors']} errors, {completed} answers"
            )
        return Window(
            target=target.name, model=model.name, protocol=protocol, load="closed" if job.concurrency else "open",
            concurrency=job.concurrency, offered_per_s=job.rate_per_s, load_factor=load_factor, rows=len(model.row), repeat=repeat,
            requests=completed, errors=found["errors"], unfinished=found["unfinished"], elapsed_s=elapsed_s,
            requests_per_s=completed / elapsed_s, rows_per_s=completed * len(model.row) / elapsed_s,
            p50_ms=found["p50_ms"], p95_ms=found["p95_ms"], p99_ms=found["p99_ms"], max_ms=found["max_ms"],
            server_cpu_us=found["server_cpu_s"] / completed * 1e6, server_cpu_share=found["server_cpu_s"] / elapsed_s,
            server_rss_mib=found["server_rss_bytes"] / _MIB, client_cpu_share=found["client_cpu_share"],
            send_lag_p99_ms=found["send_lag_p99_ms"], foreign_cores=found["foreign_cores"],
        )  # fmt: skip
