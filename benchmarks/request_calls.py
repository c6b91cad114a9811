"""The number of Python calls of one warm inference request: `python -m benchmarks.request_calls`.

A server runs in this process with its default settings. A client thread sends `simple` (two INT32[16] tensors) over one connection until
everything is warm, then arms a profile function (`sys.setprofile`) in the server's thread. From the start to the end of the read that
contains the request, when the response is written, it counts Python calls, source files, and the deepest stack. It does not see compiled
functions: in a native build it counts the calls that remain, until the response has arrived. The clock of the threads'
CPU time is frozen, so that the model runs on the event loop under any load of the machine. The counts are therefore the same in every
run, and a test bounds them (`--check`).
"""

import argparse
import json
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np

from benchmarks.http2_requests import MODEL_INFER, GrpcRequests
from benchmarks.models import CHECKOUT
from stoker.server.pb import grpc_service_pb2 as pb

_WARM_REQUESTS: Final = 200
_MEASURED_REQUESTS: Final = 15
_START_S: Final = 60.0
#: After the response the server's thread ends the read: it has this long to do so in a native build, which shows no end of it.
_END_S: Final = 0.02
_READS: Final = frozenset({"data_received", "buffer_updated"})
#: `apart`: a model without dynamic batching; `stream`: a stream with one request; `steps`: an ensemble of two such models.
_CASES: Final = ("grpc", "http-binary", "http-json", "grpc-apart", "grpc-stream", "grpc-steps")
_MODEL: Final = "simple"
_APART_MODEL: Final = "simple_apart"
_SECOND_MODEL: Final = "simple_second"
_ENSEMBLE: Final = "simple_steps"
_ENSEMBLE_CONFIG: Final = """platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
ensemble_scheduling {
  step {
    model_name: "simple" model_version: -1
    input_map [ { key: "INPUT0" value: "INPUT0" }, { key: "INPUT1" value: "INPUT1" } ]
    output_map [ { key: "OUTPUT0" value: "sum" }, { key: "OUTPUT1" value: "difference" } ]
  }
  step {
    model_name: "simple_second" model_version: -1
    input_map [ { key: "INPUT0" value: "sum" }, { key: "INPUT1" value: "difference" } ]
    output_map [ { key: "OUTPUT0" value: "OUTPUT0" }, { key: "OUTPUT1" value: "OUTPUT1" } ]
  }
}
"""


@dataclass(slots=True)
class ReadCount:
    """The counts of one read.

    Attributes:
        calls: Number of Python calls.
        packages: Number of calls by package; "other" is outside of this repository.
        files: Source files of this repository.
        stack_depth: The deepest stack, counted from the read.
        trace: The calls in their order, indented by depth, each with its package and file.
    """

    calls: int = 0
    packages: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)
    stack_depth: int = 0
    trace: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON data."""
        packages = dict(sorted(self.packages.items(), key=lambda item: -item[1]))
        return {"calls": self.calls, "files": len(self.files), "stack_depth": self.stack_depth, "packages": packages}


#: Functions that are not counted, with all that they call: whether the read runs them depends on time or on how segments arrive.
#: `_count` of ensembles runs in the loop's next turn if the read has used its share of time.
_BY_TIME: Final = frozenset({"BusyPoll._end_run", "ControlFrames.window_update", "EnsembleScheduler._count"})


class CallCounter:
    """A profile function that counts one read at a time, once armed. Runs in the server's thread.

    Args:
        sees_reads: Whether the functions that read are interpreted. If not, it counts from `arm` to `result`.
    """

    def __init__(self, *, sees_reads: bool) -> None:
        self._sees_reads = sees_reads
        self._is_armed = False
        self._count: ReadCount | None = None
        self._read: FrameType | None = None
        self._skipped: FrameType | None = None
        self._depth = 0
        self._done = threading.Event()

    def arm(self) -> None:
        """Arms the counter for the next read. Called by the client."""
        self._count = None if self._sees_reads else ReadCount()
        self._depth = 0
        self._done.clear()
        self._is_armed = True

    def result(self) -> ReadCount:
        """The counts of that read; waits for its end. Called by the client when it has the response."""
        if not self._sees_reads:
            time.sleep(_END_S)
            self._is_armed = False
            self._done.set()
        if not self._done.wait(_START_S) or self._count is None:
            raise RuntimeError("the server has read nothing since the counter was armed")
        return self._count

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if not self._is_armed:
            return
        if self._sees_reads and self._read is None:
            if event != "call" or frame.f_code.co_name not in _READS:
                return
            self._read, self._depth, self._count = frame, 0, ReadCount()
        count = self._count
        assert count is not None
        if event == "call":
            self._depth += 1
            if self._skipped is not None:
                return
            if frame.f_code.co_qualname in _BY_TIME:
                self._skipped = frame
                return
            count.calls += 1
            count.stack_depth = max(count.stack_depth, self._depth)
            path = frame.f_code.co_filename
            package = _package_of(path)
            count.packages[package] += 1
            if package != "other":
                count.files.add(path)
            count.trace.append(f"{'  ' * (self._depth - 1)}{frame.f_code.co_qualname}  {package}/{Path(path).name}")
        elif event == "return":
            self._depth -= 1
            if frame is self._skipped:
                self._skipped = None
            if frame is self._read:
                self._read, self._is_armed = None, False
                self._done.set()


def _package_of(path: str) -> str:
    """`server.rpc` for .../stoker/server/rpc/http2/call.py; "other" for what is not in this repository."""
    head, found, inside = path.rpartition("/stoker/")
    if not found or not head.startswith(str(CHECKOUT)):
        return "other"
    return ".".join(inside.split("/")[:-1][:2])


class GrpcClient:
    """ModelInfer over one HTTP/2 connection, or ModelStreamInfer; all of a request in one segment."""

    def __init__(self, port: int, model: str = _MODEL, method: str = "ModelInfer") -> None:
        self._socket = _connected(port)
        self._socket.sendall(GrpcRequests.PREFACE)
        self._requests = GrpcRequests(_infer_message(model).SerializeToString(), MODEL_INFER.replace("ModelInfer", method))
        self._received = b""

    def request(self) -> bytes:
        """The frames of the next request."""
        return self._requests.next()

    def send(self, request: bytes) -> None:
        """Sends the request and reads its response.

        Raises:
            RuntimeError: the call failed.
        """
        self._socket.sendall(request)
        while True:
            while len(self._received) < 9:
                self._received += _read(self._socket)
            size = int.from_bytes(self._received[:3], "big")
            while len(self._received) < 9 + size:
                self._received += _read(self._socket)
            kind, flags, stream_id = struct.unpack_from(">BBI", self._received, 3)
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            if kind == 1 and flags & 1 and stream_id == self._requests.stream_id:
                if b"grpc-message" in payload:
                    raise RuntimeError(f"the call failed: {payload!r}")
                return


class HttpClient:
    """POST .../infer over one HTTP/1.1 connection; head and body in one segment."""

    def __init__(self, port: int, *, is_binary: bool) -> None:
        self._socket = _connected(port)
        values = [list(range(16)), [1] * 16]
        tensors: list[dict[str, Any]] = [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "data": data}
            for name, data in zip(("INPUT0", "INPUT1"), values, strict=True)
        ]
        outputs: list[dict[str, Any]] = [{"name": name} for name in ("OUTPUT0", "OUTPUT1")]
        extra, raw = "", b""
        if is_binary:
            for tensor in tensors:
                raw += np.array(tensor.pop("data"), np.int32).tobytes()
                tensor["parameters"] = {"binary_data_size": 64}
            outputs = [{"name": name, "parameters": {"binary_data": True}} for name in ("OUTPUT0", "OUTPUT1")]
        text = json.dumps({"inputs": tensors, "outputs": outputs}).encode()
        if is_binary:
            extra = f"Inference-Header-Content-Length: {len(text)}\r\n"
        head = f"POST /v2/models/simple/infer HTTP/1.1\r\nHost: localhost\r\n{extra}Content-Length: {len(text + raw)}\r\n\r\n"
        self._request = head.encode() + text + raw

    def request(self) -> bytes:
        """The request, always the same."""
        return self._request

    def send(self, request: bytes) -> None:
        """Sends the request and reads its response.

        Raises:
            RuntimeError: the response is not 200.
        """
        self._socket.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += _read(self._socket)
        head, _, body = received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the request failed: {received!r}")
        size = next(int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        while len(body) < size:
            body += _read(self._socket)


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=_START_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _read(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise RuntimeError("the server has closed the connection")
    return data


def _infer_message(model: str) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, id="1")
    for name, values in (("INPUT0", np.arange(16, dtype=np.int32)), ("INPUT1", np.ones(16, np.int32))):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(values.tobytes())
    return message


def _count(client: GrpcClient | HttpClient, counter: CallCounter, warm_requests: int) -> ReadCount:
    """The smallest counts that occur twice: on a busy machine, batches last longer than their share of the loop, and more calls run."""
    counts: list[ReadCount] = []
    for at in range(warm_requests + _MEASURED_REQUESTS):
        request = client.request()
        if at >= warm_requests:
            counter.arm()
        client.send(request)
        if at >= warm_requests:
            counts.append(counter.result())
    frequency = Counter(count.calls for count in counts)
    repeated = [calls for calls, times in frequency.items() if times > 1] or list(frequency)
    return next(count for count in counts if count.calls == min(repeated))


def _measure(ready: Path, counter: CallCounter, cases: Sequence[str], take: Callable[[dict[str, ReadCount]], None]) -> None:
    """Waits for the server, counts every case, and ends the server."""
    try:
        deadline_s = time.monotonic() + _START_S
        while not ready.exists() or not ready.read_text(encoding="utf-8").strip():
            if time.monotonic() > deadline_s:
                raise RuntimeError("the server is not ready")
            time.sleep(0.02)
        ports = json.loads(ready.read_text(encoding="utf-8"))
        counts: dict[str, ReadCount] = {}
        for case in cases:
            if case.startswith("grpc"):
                model = {"grpc-apart": _APART_MODEL, "grpc-steps": _ENSEMBLE}.get(case, _MODEL)
                method = "ModelStreamInfer" if case == "grpc-stream" else "ModelInfer"
                client: GrpcClient | HttpClient = GrpcClient(ports["grpc_port"], model, method)
            else:
                client = HttpClient(ports["http_port"], is_binary=case == "http-binary")
            counts[case] = _count(client, counter, _WARM_REQUESTS)
        take(counts)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def count_requests(cases: Sequence[str] = _CASES) -> Mapping[str, ReadCount]:
    """Runs a server in this thread, which must be the main one, and counts a warm request of every case.

    Raises:
        RuntimeError: the server did not start or a request failed.
    """
    # Before the import of the server, which keeps the clock. `int()` is 0 and, unlike a Python function, is not counted.
    time.thread_time_ns = int
    from stoker.server.core.build_kind import BUILD
    from stoker.server.main import main
    from stoker.server.scheduling import scheduler

    # On a slow machine, which the counting slows further, a request would exceed the share of the loop, and make more calls.
    setattr(scheduler, "LOOP_SHARE_NS", 1 << 62)  # noqa: B010 - a constant
    counter = CallCounter(sees_reads=BUILD == "pure")
    counts: dict[str, ReadCount] = {}
    with tempfile.TemporaryDirectory() as folder:
        repository, ready = Path(folder, "models"), Path(folder, "ready.json")
        for name in (_MODEL, _APART_MODEL, _SECOND_MODEL):
            shutil.copytree(CHECKOUT / "model_repos" / _MODEL, repository / name)
            config = repository / name / "config.pbtxt"
            text = config.read_text(encoding="utf-8").replace(f'"{_MODEL}"', f'"{name}"')
            config.write_text(text.replace("dynamic_batching { }", "") if name == _APART_MODEL else text, encoding="utf-8")
        (repository / _ENSEMBLE / "1").mkdir(parents=True)
        (repository / _ENSEMBLE / "config.pbtxt").write_text(_ENSEMBLE_CONFIG, encoding="utf-8")
        client = threading.Thread(target=_measure, args=(ready, counter, cases, counts.update), daemon=True)
        client.start()
        flags = [f"--model_base_path={repository}", "--grpc_port=0", "--http_port=0", f"--ready_file={ready}", f"--log-file={folder}/log"]
        sys.setprofile(counter)
        try:
            with Path(folder, "table").open("w", encoding="utf-8") as table, redirect_stdout(table), suppress(SystemExit):
                main(flags)
        finally:
            sys.setprofile(None)
        client.join()
    if not counts:
        raise RuntimeError("the requests could not be counted")
    return counts


def _bound(text: str) -> tuple[str, int]:
    """Parses CASE=MAX."""
    case, _, most = text.partition("=")
    if case not in _CASES or not most.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not CASE=MAX with a case of {', '.join(_CASES)}")
    return case, int(most)


def main() -> int:
    """Prints the counts; returns 1 if a case runs more calls than `--check` allows it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    parser.add_argument("--list", action="store_true", help="print every call of one request, indented by depth")
    parser.add_argument(
        "--check", nargs="+", type=_bound, default=[], metavar="CASE=MAX", help="fail if a request of CASE runs more than MAX calls"
    )
    options = parser.parse_args()
    unmeasured = sorted({case for case, _ in options.check} - set(options.cases))
    if unmeasured:
        parser.error(f"--check: '{unmeasured[0]}' is not among --cases {' '.join(options.cases)}")
    counts = count_requests(options.cases)
    print(f"{'case':12} {'calls':>6} {'files':>6} {'depth':>6}  calls by package")
    for case, count in counts.items():
        packages = ", ".join(f"{name} {number}" for name, number in count.packages.most_common())
        print(f"{case:12} {count.calls:6} {len(count.files):6} {count.stack_depth:6}  {packages}")
    if options.json is not None:
        options.json.write_text(json.dumps({case: count.as_dict() for case, count in counts.items()}, indent=1) + "\n", encoding="utf-8")
    if options.list:
        for case, count in counts.items():
            print(f"\n{case}", *count.trace, sep="\n")
    over = [f"{case} runs {counts[case].calls} calls, more than {most}" for case, most in options.check if counts[case].calls > most]
    for line in over:
        print(line, file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
