"""Models in worker processes: faults beside another model, and the cost of a batch: `python -m benchmarks.isolation`.

    python -m benchmarks.isolation [--rounds 3] [--window 4] [--faults segv kill memory loop gil] [--parts faults cost] [--output FILE]

Faults: a small ONNX model, the neighbour, gets requests one after the other on some connections while another model, in a worker process,
gets a request that crashes or hangs it, and other requests that must succeed. Each round has three windows: without a fault, with the
fault, and with a foreign process that uses a core for the same time. The ratio of the latencies of the last two is the part of the
server: the rest is the core that the fault uses.

Cost: the same ONNX model (x + 1) in a thread and in a worker process of one server, for tensors of 64 bytes, 600 KB and 4 MB, one request
at a time, in turn. CPU time is that of the server and its worker processes.

Figures of one run are comparable. The ratios are medians over the rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.models import BenchModel, build_added
from benchmarks.process_tree import process_tree
from benchmarks.processes import end_on_sigterm
from benchmarks.servers import ServerUnderTest, this_checkout
from stoker_client import DeadlineExceeded, GrpcClient, RetryPolicy, StokerError, Unavailable

#: Requests of the faulty model in a window, beside the one with the fault, are this far apart, seconds.
_STEP_S: Final = 0.02
#: The neighbour's connections.
_CLIENTS: Final = 2
#: Longest time until the faulty model serves again, seconds.
_PATIENCE_S: Final = 30.0
_HANG_S: Final = 1.0
#: Bars: the median latency of the neighbour with and without the fault; the error after a crash, or beyond the timeout of a hang; the
#: restart; more CPU and latency of a batch in a process.
_MOST_RATIO: Final = 1.2
_MOST_ERROR_S: Final = 0.2
_MOST_RESTART_S: Final = 2.0
_MOST_CPU_US: Final = 100.0
_MOST_LATENCY_US: Final = 300.0
#: By name: the command, and more of config.pbtxt.
FAULTS: Final = {
    "segv": ("segv", ""),
    "kill": ("kill", ""),
    "memory": ("memory", 'parameters { key: "instance_memory_limit_bytes" value { string_value: "1073741824" } }'),
    "loop": ("loop", f'parameters {{ key: "instance_timeout" value {{ string_value: "{_HANG_S:g}" }} }}'),
    "gil": ("gil", f'parameters {{ key: "instance_timeout" value {{ string_value: "{_HANG_S:g}" }} }}'),
}
_HANGS: Final = frozenset({"loop", "gil"})
_MODEL: Final = """
import os
import signal


def predict(command: str) -> str:
    if command == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if command == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if command == "memory":
        bytearray(2 << 30)
    while command == "loop":
        pass
    if command == "gil":
        return str((7 ** (1 << 32)).bit_length())
    return command
"""
#: Floats of a tensor, and timed requests of a block.
COSTS: Final = {16: 300, 150_528: 60, 1_048_576: 20}


@dataclass(slots=True)
class FaultResult:
    """The figures of one fault.

    Attributes:
        fault: Its name.
        sent, failed: Requests of the neighbour in the windows with the fault.
        p50_ms: The neighbour's median latency by kind of window, one for each round.
        error_s: From the fault's request to its error, one for each round; for a hang, the instance's timeout is part of it.
        restart_s: From the error of the fault to the next response, one for each round.
        outcomes: Requests of the faulty model by outcome.
    """

    fault: str
    sent: int = 0
    failed: int = 0
    p50_ms: dict[str, list[float]] = field(default_factory=lambda: {"quiet": [], "fault": [], "foreign": []})
    error_s: list[float] = field(default_factory=list)
    restart_s: list[float] = field(default_factory=list)
    outcomes: "dict[str, int]" = field(default_factory=dict)

    def ratio(self, kind: str, base: str) -> float:
        """The median over the rounds of the ratio of two windows."""
        return statistics.median(a / b for a, b in zip(self.p50_ms[kind], self.p50_ms[base], strict=True))


@dataclass(frozen=True, slots=True)
class CostResult:
    """The figures of one size. On a busy machine, only the best block says something about latency.

    Attributes:
        tensor_bytes: Of the input and of the output.
        p50_us: The median latency in the best block, by execution.
        cpu_us: The CPU time of a request in the best block, by execution.
        median_more_us, median_more_cpu_us: The medians over the rounds of what the process takes more.
    """

    tensor_bytes: int
    p50_us: "dict[str, float]"
    cpu_us: "dict[str, float]"
    median_more_us: float
    median_more_cpu_us: float


class Neighbour:
    """The load on the neighbour."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(_CLIENTS)]
        self._lock = threading.Lock()
        #: When each request began, and how long it took, seconds.
        self.latencies: list[tuple[float, float]] = []
        self.failures: list[tuple[float, str]] = []

    def __enter__(self) -> "Neighbour":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        row = np.arange(16, dtype=np.float32)[None]
        with GrpcClient(self._address, retry=RetryPolicy(max_attempts=1)) as client:
            while not self._is_over.is_set():
                begun = time.monotonic()
                try:
                    client.infer("neighbour", {"x": row})
                except StokerError as error:
                    with self._lock:
                        self.failures.append((begun, str(error)))
                    continue
                taken = time.monotonic() - begun
                with self._lock:
                    self.latencies.append((begun, taken))

    def window(self, begun: float, ended: float) -> "tuple[float, int, int]":
        """The median latency, milliseconds, and the requests that succeeded and failed, of those that began in a window."""
        with self._lock:
            taken = [each for start, each in self.latencies if begun <= start < ended]
            failed = sum(1 for start, _ in self.failures if begun <= start < ended)
        return statistics.median(taken) * 1e3, len(taken), failed


def inject(client: GrpcClient, name: str, command: str, end: float, found: FaultResult) -> float:
    """Sends the fault and then other requests to the faulty model until `end`. Returns for how long the fault was in work, seconds."""

    def send(text: str) -> str:
        try:
            client.infer(name, {"command": np.array([text.encode()], np.object_)})
        except Unavailable:
            outcome = "UNAVAILABLE"
        except DeadlineExceeded:
            outcome = "DEADLINE_EXCEEDED"
        except StokerError as error:
            outcome = f"{type(error).__name__}"
        else:
            outcome = "success"
        found.outcomes[outcome] = found.outcomes.get(outcome, 0) + 1
        return outcome

    begun = time.monotonic()
    send(command)
    failed = time.monotonic()
    found.error_s.append(failed - begun)
    is_served = False
    while time.monotonic() < end or (not is_served and time.monotonic() < failed + _PATIENCE_S):
        if send("value") == "success" and not is_served:
            is_served = True
            found.restart_s.append(time.monotonic() - failed)
        time.sleep(_STEP_S)
    return failed - begun


@contextmanager
def foreign_load(seconds: float) -> Iterator[None]:
    """A process that uses a core for `seconds`, as a fault does."""
    code = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        yield
        process.wait()


def measure_faults(
    server: ServerUnderTest, names: Sequence[str], rounds: int, window_s: float, say: Callable[[str], None]
) -> list[FaultResult]:
    """Injects each fault once a round."""
    found = {name: FaultResult(name) for name in names}
    address = f"127.0.0.1:{server.grpc_port}"
    retry = RetryPolicy(max_attempts=1)
    with GrpcClient(address, retry=retry) as client, Neighbour(address) as neighbour:
        time.sleep(window_s)  # warm
        for number in range(rounds):
            for name, result in found.items():
                command = FAULTS[name][0]
                begun = time.monotonic()
                time.sleep(window_s)
                result.p50_ms["quiet"].append(neighbour.window(begun, time.monotonic())[0])
                begun = time.monotonic()
                busy_s = inject(client, f"faulty-{name}", command, begun + window_s, result)
                p50_ms, sent, failed = neighbour.window(begun, begun + window_s)
                result.p50_ms["fault"].append(p50_ms)
                result.sent += sent + failed
                result.failed += failed
                begun = time.monotonic()
                with foreign_load(busy_s if command in _HANGS else 0.3):
                    time.sleep(window_s)
                result.p50_ms["foreign"].append(neighbour.window(begun, begun + window_s)[0])
                again = f"again after {result.restart_s[-1]:.2f} s"
                say(f"round {number + 1}: {name}: p50 {p50_ms:.3f} ms, {failed} of {sent + failed} failed, {again}")
        assert not neighbour.failures, neighbour.failures[:3]
    return list(found.values())


def measure_costs(server: ServerUnderTest, rounds: int) -> list[CostResult]:
    """Compares batches in a thread and in a worker process."""
    results = []
    tree = process_tree(server.pid)
    with GrpcClient(f"127.0.0.1:{server.grpc_port}") as client:
        for floats, count in COSTS.items():
            row = np.zeros((1, floats), np.float32)
            rows: dict[str, list[tuple[float, float]]] = {"thread": [], "process": []}
            for number in range(rounds + 1):
                for kind in ("thread", "process") if number % 2 else ("process", "thread"):
                    taken = []
                    cpu_s = tree.cpu_s()
                    for _ in range(count):
                        begun = time.monotonic()
                        client.infer(f"add-{floats}-{kind}", {"x": row})
                        taken.append(time.monotonic() - begun)
                    if number:  # the first round is to warm
                        rows[kind].append((statistics.median(taken) * 1e6, (tree.cpu_s() - cpu_s) / count * 1e6))
            more = [statistics.median(b[at] - a[at] for a, b in zip(rows["thread"], rows["process"], strict=True)) for at in (0, 1)]
            best = [{kind: min(each[at] for each in found) for kind, found in rows.items()} for at in (0, 1)]
            results.append(CostResult(4 * floats, best[0], best[1], more[0], more[1]))
    return results


def build(repository: Path, faults: Sequence[str], sizes: Sequence[int]) -> "list[BenchModel]":
    """Writes the models."""
    models = [build_added(repository, "neighbour", 16, "auto")]
    for name in faults:
        folder = repository / f"faulty-{name}"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(_MODEL)
        (folder / "config.pbtxt").write_text(f'backend: "python"\n{FAULTS[name][1]}\n')
    for floats in sizes:
        models += [build_added(repository, f"add-{floats}-{kind}", floats, kind) for kind in ("thread", "process")]
    return models


def fault_table(results: Sequence[FaultResult]) -> Table:
    """The faults as a table."""
    table = Table(title="faults beside a neighbour (medians over the rounds)", title_justify="left")
    for heading in (
        "fault",
        "neighbour: sent",
        "failed",
        "p50 ms",
        "with / without",
        "with / foreign load",
        "error after s",
        "again after s",
        "the model's outcomes",
    ):
        table.add_column(heading)
    for each in results:
        ratio, foreign = each.ratio("fault", "quiet"), each.ratio("fault", "foreign")
        restart_s, error_s = statistics.median(each.restart_s), max(each.error_s)
        late_s = error_s - (_HANG_S if each.fault in _HANGS else 0)
        table.add_row(
            each.fault,
            f"{each.sent:,}",
            _judged(str(each.failed), each.failed == 0),
            f"{statistics.median(each.p50_ms['fault']):.3f}",
            _judged(f"{ratio:.2f}", ratio <= _MOST_RATIO),
            f"{foreign:.2f}",
            _judged(f"{error_s:.3f}", late_s <= _MOST_ERROR_S),
            _judged(f"{restart_s:.2f} (most {max(each.restart_s):.2f})", max(each.restart_s) <= _MOST_RESTART_S),
            ", ".join(f"{name} {count}" for name, count in sorted(each.outcomes.items())),
        )
    return table


def cost_table(results: Sequence[CostResult]) -> Table:
    """The costs as a table."""
    table = Table(title="one batch in a worker process over one in a thread: best block, and median difference", title_justify="left")
    for heading in ("tensor", "p50 us, thread", "process", "more", "median", "CPU us, thread", "process", "more", "median"):
        table.add_column(heading, justify="right")
    for each in results:
        size = f"{each.tensor_bytes} B" if each.tensor_bytes < 1000 else f"{each.tensor_bytes / 1e3:,.0f} KB"
        cells = []
        for best, median, most in (
            (each.p50_us, each.median_more_us, _MOST_LATENCY_US),
            (each.cpu_us, each.median_more_cpu_us, _MOST_CPU_US),
        ):
            more = best["process"] - best["thread"]
            cells += [f"{best['thread']:,.0f}", f"{best['process']:,.0f}", _judged(f"{more:+,.0f}", more <= most), f"{median:+,.0f}"]
        table.add_row(size, *cells)
    return table


def _judged(text: str, is_met: bool) -> str:
    return f"{text} [green]met[/]" if is_met else f"{text} [red]missed[/]"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="at most 4 for the faults: an instance is ejected at its fifth death")
    parser.add_argument("--window", type=float, default=4.0, help="length of a window, seconds")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--parts", nargs="+", choices=("faults", "cost"), default=["faults", "cost"])
    parser.add_argument("--output", type=Path, help="a file for the figures as JSON")
    options = parser.parse_args()
    if options.rounds > 4 and "faults" in options.parts:
        parser.error("--rounds: at most 4 for the faults")
    end_on_sigterm()
    console = Console(width=160)
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in describe_machine().items()))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        faults = options.faults if "faults" in options.parts else []
        build(scratch / "models", faults, list(COSTS) if "cost" in options.parts else [])
        with this_checkout().server(scratch / "models", scratch) as server:
            fault_results = measure_faults(server, faults, options.rounds, options.window, console.print) if faults else []
            cost_results = measure_costs(server, 4 * options.rounds) if "cost" in options.parts else []
    if fault_results:
        console.print(fault_table(fault_results))
    if cost_results:
        console.print(cost_table(cost_results))
    if options.output is not None:
        figures = {
            "faults": [asdict(each) for each in fault_results],
            "cost": [asdict(each) for each in cost_results],
        }
        options.output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
