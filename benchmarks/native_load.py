"""Load from h2load, a native generator: a Python client would be the bottleneck of what is measured.

It sends a fixed number of requests over HTTP/2 (as gRPC calls) or HTTP/1.1, and logs every latency. It looks at HTTP statuses only, so a
caller checks by the server's own statistics that every request was answered well.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.latency import LatencySummary, summarise
from benchmarks.process_tree import process_tree
from benchmarks.processes import on_cores

#: A run that takes longer has hung, seconds.
PATIENCE_S = 180.0
#: Requests of one run, at most.
MOST_REQUESTS = 1_000_000
_SUCCEEDED = re.compile(r"requests: \d+ total, \d+ started, \d+ done, (\d+) succeeded, (\d+) failed")
_FINISHED = re.compile(r"finished in ([\d.]+)(us|ms|s|min)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_GRPC_HEADERS = ("content-type: application/grpc", "te: trailers")


class NativeLoadFailed(RuntimeError):
    """h2load is not installed, or did not finish, or requests failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The request that is posted, again and again.

    Attributes:
        path: Of the URL.
        body: The file that holds the body; for gRPC the message with its five-byte prefix.
        headers: As `name: value`.
        is_http1: HTTP/1.1 instead of HTTP/2.
    """

    path: str
    body: Path
    headers: tuple[str, ...]
    is_http1: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeWindow:
    """One run of h2load.

    Attributes:
        requests: Sent and answered with an HTTP status that means success.
        elapsed_s: Of the run.
        server_cpu_us: CPU time of the server's processes for each request, microseconds.
        latency: Percentiles.
    """

    requests: int
    elapsed_s: float
    server_cpu_us: float
    latency: LatencySummary

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.elapsed_s


def grpc_payload(message: bytes, method: str, at: Path) -> Payload:
    """A unary call of `method` (`package.Service/Name`) with `message`; the framed message is written to `at`."""
    at.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    return Payload(path=f"/{method}", body=at, headers=_GRPC_HEADERS)


def http_payload(request: bytes, at: Path) -> Payload:
    """The same as `request`, a whole HTTP/1.1 request as `wire.encode_request` makes it; its body is written to `at`."""
    head, _, body = request.partition(b"\r\n\r\n")
    at.write_bytes(body)
    first, *lines = head.decode("ascii").split("\r\n")
    kept = tuple(line for line in lines if line.partition(":")[0].lower() not in ("host", "content-length", "user-agent"))
    return Payload(path=first.split(" ")[1], body=at, headers=kept, is_http1=True)


def run_load(
    payload: Payload, port: int, pid: int, *, connections: int, streams: int, requests: int, cores: Sequence[int], log: Path
) -> NativeWindow:
    """Sends `requests` with `connections` times `streams` in flight, and reads the CPU time of the server `pid` around it.

    Args:
        payload: What is sent.
        port: On 127.0.0.1.
        pid: Of the server; its descendants count too.
        connections: Open at once.
        streams: Requests in flight on each; 1 for HTTP/1.1.
        requests: How many, at most `MOST_REQUESTS`.
        cores: Where the generator runs.
        log: A file for the latencies.

    Raises:
        NativeLoadFailed: see there.
    """
    command = [_h2load(), f"--requests={min(requests, MOST_REQUESTS)}", f"--clients={connections}", f"--max-concurrent-streams={streams}"]
    command += [f"--data={payload.body}", f"--log-file={log}", *(f"--header={each}" for each in payload.headers)]
    command += ["--h1"] if payload.is_http1 else []
    log.unlink(missing_ok=True)
    tree = process_tree(pid)
    with on_cores(cores):
        before_s = tree.cpu_s()
        try:
            done = subprocess.run(
                [*command, f"http://127.0.0.1:{port}{payload.path}"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NativeLoadFailed(f"h2load has not sent {requests} requests to {payload.path} within {PATIENCE_S:.0f} s") from None
        cpu_s = tree.cpu_s() - before_s
    succeeded, elapsed_s = read_output(done.stdout)
    if succeeded != min(requests, MOST_REQUESTS):
        raise NativeLoadFailed(f"{succeeded} of {requests} requests to {payload.path} succeeded: {done.stdout[-600:]}{done.stderr[-300:]}")
    return NativeWindow(
        requests=succeeded, elapsed_s=elapsed_s, server_cpu_us=cpu_s / succeeded * 1e6, latency=summarise(read_latencies_ns(log))
    )


def read_output(text: str) -> tuple[int, float]:
    """Requests that succeeded, and the time they took in seconds, as h2load prints them.

    Raises:
        NativeLoadFailed: the text says neither.
    """
    counts, finished = _SUCCEEDED.search(text), _FINISHED.search(text)
    if counts is None or finished is None:
        raise NativeLoadFailed(f"h2load printed no result: {text[-600:]}")
    return int(counts[1]), float(finished[1]) * _SECONDS[finished[2]]


def read_latencies_ns(log: Path) -> list[int]:
    """The latencies in h2load's log, in nanoseconds: its third column holds microseconds."""
    return [int(line.split("\t")[2]) * 1000 for line in log.read_text(encoding="ascii").splitlines()]


def _h2load() -> str:
    path = shutil.which("h2load")
    if path is None:
        raise NativeLoadFailed("h2load is not installed: it is part of nghttp2 (Debian: apt-get install nghttp2-client)")
    return path
