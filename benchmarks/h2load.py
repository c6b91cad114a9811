"""h2load, a native load generator: for small requests a Python generator may cost more than the server that is measured.

It sends a number of requests over HTTP/2 (as gRPC calls) or HTTP/1.1 and logs every latency. It looks at HTTP statuses only: the caller
checks by the server's own statistics that every request got a good response.
"""

import re
import shutil
import subprocess
from pathlib import Path

from benchmarks.requests import Request

#: Time after which a run is taken as hung, seconds.
PATIENCE_S = 120.0
_SUCCEEDED = re.compile(r"requests: \d+ total, \d+ started, \d+ done, (\d+) succeeded, (\d+) failed")


class NativeLoadFailed(RuntimeError):
    """h2load did not finish, or requests failed."""


def is_installed() -> bool:
    """Whether h2load is installed. It is part of nghttp2 (Debian: apt-get install nghttp2-client)."""
    return shutil.which("h2load") is not None


def run(request: Request, port: int, *, connections: int, streams: int, requests: int, scratch: Path) -> tuple[list[int], float]:
    """Sends `requests` to `port` of 127.0.0.1, with `connections` times `streams` in flight.

    Returns:
        The latencies in nanoseconds, and the seconds from the first request to the last response.

    Raises:
        NativeLoadFailed: See there.
    """
    log, body = scratch / "h2load.log", scratch / f"{request.model}.{request.protocol}.body"
    path, headers = write_body(request, body)
    log.unlink(missing_ok=True)
    command = ["h2load", f"--requests={requests}", f"--clients={connections}", f"--max-concurrent-streams={streams}"]
    command += [f"--data={body}", f"--log-file={log}", *(f"--header={name}: {value}" for name, value in headers.items())]
    command += [] if request.is_grpc else ["--h1"]
    try:
        done = subprocess.run([*command, f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise NativeLoadFailed(f"h2load has not sent {requests} requests to {path} within {PATIENCE_S:.0f} s") from None
    if succeeded(done.stdout) != requests:
        raise NativeLoadFailed(
            f"{succeeded(done.stdout)} of {requests} requests to {path} succeeded: {done.stdout[-600:]}{done.stderr[-300:]}"
        )
    return read_log(log)


def write_body(request: Request, body: Path) -> tuple[str, dict[str, str]]:
    """Writes the request body to `body`, for gRPC the message with its five-byte prefix; returns the path of the URL and the headers."""
    encoded = request.call.request
    if request.is_grpc:
        message = encoded.message.SerializeToString()
        body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        return encoded.path, {"content-type": "application/grpc", "te": "trailers"}
    body.write_bytes(encoded.body)
    return encoded.path, dict(encoded.headers)


def succeeded(text: str) -> int:
    """The number of successful requests in h2load's output.

    Raises:
        NativeLoadFailed: the output does not contain it.
    """
    counts = _SUCCEEDED.search(text)
    if counts is None:
        raise NativeLoadFailed(f"h2load printed no result: {text[-600:]}")
    return int(counts[1])


def read_log(log: Path) -> tuple[list[int], float]:
    """The latencies in nanoseconds and the length of the run in seconds; columns are start, status and latency, in microseconds."""
    lines = [line.split("\t") for line in log.read_text(encoding="ascii").splitlines()]
    begun = [int(start) for start, _, _ in lines]
    latencies = [int(latency) for _, _, latency in lines]
    ended = max(start + latency for start, latency in zip(begun, latencies, strict=True))
    return [each * 1000 for each in latencies], max(ended - min(begun), 1) / 1e6
