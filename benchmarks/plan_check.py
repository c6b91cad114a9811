"""Predicted latencies beside those of a paced run: `serve` with compiled models, under open and closed loops at several loads.

    python -m benchmarks.plan_check                       # compiles two networks, then about ten minutes
    python -m benchmarks.plan_check --models /tmp/models --cases ipu --rounds 1

Each model is compiled as users compile. `serve` runs it in a process of its own with `pacing: realtime` and `numerics: off`: a call takes
as long as the cost model says and computes nothing. The load generator of `stoker bench` sends Poisson arrivals at shares of the capacity,
or keeps requests in flight. The simulation gets the same times, the same batching and, for Poisson arrivals, the same gaps. It takes the
host's times from closed loops: the latency of one client without the device's, and the generator's CPU time of a request.

Both sides have the same modelled device: the comparison tests the prediction of queueing, batching and pipelining, not the cost model. A
loaded host delays threads by milliseconds, which the simulation does not contain. The column `others` has the cores that other processes
used; compare only rows of a quiet host.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks.device_times import gcu_call_times, ipu_call_times
from benchmarks.ipu_networks import bert_base
from benchmarks.load import Generator, InFlight
from benchmarks.network_graph import Precision
from benchmarks.processes import end_on_sigterm
from benchmarks.requests import GRPC, Request, encoded
from benchmarks.results import Window
from benchmarks.servers import ServerUnderTest, this_checkout
from benchmarks.transformer_blocks import Size
from stoker.backends.gcu.executable import read_executable
from stoker.backends.gcu.hardware import I20
from stoker.backends.ipu.runtime import Executable
from stoker.cli.plan.load import Batching, ServiceTimes, closed_loop, poisson
from stoker.cli.plan.load_search import capacity_per_s
from stoker.cli.plan.load_simulation import LoadFigures, simulate

#: Largest relative error of p50 and p99 that counts as a match.
WITHIN = 0.15
_SEED = 0
_SEQUENCE = 384
#: By compiled model.
_BACKENDS = {"ipu": "poplar", "gcu": "topsinference"}
_SETTINGS = ("pacing=realtime", "numerics=off")
#: Requests of the closed loop of one client.
_ALONE = 300
_TIMED_REQUESTS = 50_000
#: Clients of the closed loop that finds the CPU time of a request.
_PILOT_CLIENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One served model.

    Attributes:
        name: The name of the model.
        source: The name of the compiled model that it is a copy of.
        title: What it shows, for the table.
        request_rows: Rows of each request.
        pipeline_depth: Batches in flight, as in config.pbtxt.
        max_queue_delay_us: As in config.pbtxt.
        clients: Clients of the closed loops.
    """

    name: str
    source: str
    title: str
    request_rows: int
    pipeline_depth: int
    max_queue_delay_us: int = 0
    clients: tuple[int, ...]


#: Compiler flags by compiled model. The IPU reads, computes and writes at the same time; a call takes 32 rows. The GCU has a compiled batch
#: for each load.
_COMPILED = {
    "ipu": ("--target", "ipu", "--precision", "fp16", "--ipu_version", "ipu21", "--num_io_tiles", "64", "--batches_per_step", "4"),
    "gcu": ("--target", "gcu", "--batch_sizes", "1,2,4,8,16"),
}
_COMPILED_ROWS = 8
_CASES = (
    Case(name="ipu", source="ipu", title="IPU, calls of 32 rows, pipeline", request_rows=8, pipeline_depth=3, clients=(4, 40)),
    Case(name="gcu", source="gcu", title="GCU, batches of 1 to 16, 2 in flight", request_rows=1, pipeline_depth=2, clients=(8, 40)),
    Case(
        name="gcu_delayed",
        source="gcu",
        title="GCU, 1 in flight, 20 ms queue delay",
        request_rows=1,
        pipeline_depth=1,
        max_queue_delay_us=20_000,
        clients=(40,),
    ),
)
#: Shares of the capacity at which requests arrive.
_LOADS = (0.3, 0.6, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One load: the prediction, and what the rounds measured."""

    case: Case
    load: str
    predicted: LoadFigures
    windows: Sequence[Window]

    def measured_ms(self, percent: int) -> float:
        """The median over the rounds of p50 or p99, milliseconds."""
        return statistics.median(window.p50_ms if percent == 50 else window.p99_ms for window in self.windows)

    def predicted_ms(self, percent: int) -> float:
        """The prediction, milliseconds."""
        return 1e3 * (self.predicted.p50_s if percent == 50 else self.predicted.p99_s)

    @property
    def is_within(self) -> bool:
        """Whether p50 and p99 are within `WITHIN` of the measured ones."""
        return all(abs(self.predicted_ms(percent) / self.measured_ms(percent) - 1) <= WITHIN for percent in (50, 99))


def compile_model(name: str, repository: Path) -> Path:
    """Compiles BERT with two layers to `repository`, unless it is there; returns the model's folder.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    folder = repository / name
    if folder.exists():
        return folder
    size = Size(layers=2, hidden=768, heads=12, inner=3072)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / f"{name}.onnx"
        onnx.save(ir.to_proto(bert_base(_COMPILED_ROWS, Precision.FP32, sequence=_SEQUENCE, size=size, seed=_SEED)), source)
        command = [
            sys.executable, "-m", "stoker.compiler.cli", "--input_model", str(source), "--model_repository", str(repository),
            "--model_name", name, "--disable_compilation_progress_bar", *_COMPILED[name],
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def serve_copy(case: Case, compiled: Path, repository: Path) -> ServiceTimes:
    """Adds the case's model to `repository`, with a config.pbtxt of its own; returns the modelled times of its calls."""
    folder = repository / case.name
    shutil.copytree(compiled / "1", folder / "1")
    service = _service_times(case, folder / "1")
    (folder / "config.pbtxt").write_text(
        f'name: "{case.name}"\n'
        f'backend: "{_BACKENDS[case.source]}"\n'
        f"max_batch_size: {service.batch_sizes[-1]}\n"
        f"dynamic_batching {{ max_queue_delay_microseconds: {case.max_queue_delay_us} }}\n"
        f'parameters {{ key: "pipeline_depth" value {{ string_value: "{case.pipeline_depth}" }} }}\n',
        encoding="utf-8",
    )
    return service


def _service_times(case: Case, version: Path) -> ServiceTimes:
    if case.source == "ipu":
        return ipu_call_times(Executable(version / "executable.popef").program, pipeline_depth=case.pipeline_depth)
    executable = read_executable(version / "model.exec")
    return gcu_call_times(executable, I20, request_rows=case.request_rows, pipeline_depth=case.pipeline_depth)


def compare(
    case: Case, service: ServiceTimes, server: ServerUnderTest, generator: Generator, console: Console, *, seconds: float, rounds: int
) -> Iterator[Comparison]:
    """Measures every load of a case, and predicts it.

    Raises:
        WrongResponse: requests failed.
    """
    batching = Batching(service.batch_sizes[-1], max_queue_delay_us=case.max_queue_delay_us)
    rows = case.request_rows
    request = _request(case)
    alone = [generator.closed(server, request, InFlight(1), _ALONE) for _ in range(rounds)]
    idle_s = simulate(service, batching, closed_loop(1, rows), requests=_ALONE).p50_s
    overhead_s = max(0.0, statistics.median(window.p50_ms for window in alone) / 1e3 - idle_s)
    # Generator and server each have one loop. The generator's is the slower one, and the server's CPU time includes the simulated device's.
    pilot = generator.closed(server, request, InFlight(1, _PILOT_CLIENTS), _ALONE * _PILOT_CLIENTS)
    host_s = min(overhead_s, pilot.client_cpu_share * pilot.elapsed_s / pilot.requests)
    console.print(f"{case.name}: {overhead_s * 1e3:.2f} ms of a request outside of the device, {host_s * 1e3:.2f} ms of them on a loop")
    service = replace(service, request_overhead_s=overhead_s - host_s, host_s=host_s)
    for clients in case.clients:
        figures = simulate(service, batching, closed_loop(clients, rows))
        requests = round(figures.rows_per_s / rows * seconds)
        in_flight = InFlight(1, clients)
        windows = [generator.closed(server, request, in_flight, requests, each) for each in range(rounds)]
        yield Comparison(case=case, load=f"{clients} clients", predicted=figures, windows=windows)
    capacity = capacity_per_s(service, batching, rows)
    for share in _LOADS:
        requests = round(capacity * share * seconds)
        # The generator's gaps have the same seed, but its first request comes at once.
        figures = simulate(service, batching, poisson(capacity * share, rows, _SEED), requests=requests, warm_up=0.0)
        windows = [generator.open(server, request, capacity, share, seconds, is_poisson=True) for _ in range(rounds)]
        yield Comparison(case=case, load=f"Poisson, {share:.0%}", predicted=figures, windows=windows)


def _request(case: Case) -> Request:
    inputs = {name: np.zeros((case.request_rows, _SEQUENCE), np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")}
    return encoded(case.name, inputs, GRPC)


def print_comparisons(results: Sequence[Comparison], console: Console) -> None:
    """Predicted and measured, side by side."""
    table = Table(title="latency predicted on a virtual clock and measured in a paced run, ms", title_justify="left")
    headings = ("model", "load", "requests", "p50 pred.", "meas.", "error", "p99 pred.", "meas.", "error", f"within {WITHIN:.0%}", "others")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("model", "load") else "right")
    for each in results:
        cells = []
        for percent in (50, 99):
            predicted, measured = each.predicted_ms(percent), each.measured_ms(percent)
            cells += [f"{predicted:.1f}", f"{measured:.1f}", f"{predicted / measured - 1:+.1%}"]
        table.add_row(
            each.case.title,
            each.load,
            f"{len(each.windows)} x {each.windows[0].requests:,}",
            *cells,
            "yes" if each.is_within else "no",
            f"{statistics.median(window.foreign_cores for window in each.windows):.2f}",
        )
    console.print(table)
    met = sum(each.is_within for each in results)
    console.print(
        f"{met} of {len(results)} rows within {WITHIN:.0%}. Measured: the median of the rounds. Others: cores that other processes used."
    )


def print_speed(service: ServiceTimes, batching: Batching, console: Console) -> None:
    """The simulated requests per second of CPU time, for requests that share batches and for those that do not."""
    console.print("requests that the simulation completes per second of this host's CPU time:")
    for name, settings in (("in batches", batching), ("each alone", replace(batching, is_dynamic=False))):
        arrivals = poisson(0.8 * capacity_per_s(service, settings))
        begun_s = time.process_time()
        simulate(service, settings, arrivals, requests=_TIMED_REQUESTS)
        console.print(f"  {name}: {_TIMED_REQUESTS / (time.process_time() - begun_s):,.0f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder that keeps the compiled models for the next run (default: none is kept)")
    parser.add_argument("--cases", default="", help=f"only cases whose name contains this, of {', '.join(case.name for case in _CASES)}")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each load is measured (default %(default)s)")
    options = parser.parse_args(arguments)
    chosen = [case for case in _CASES if options.cases in case.name]
    if not chosen or options.rounds < 1 or not options.seconds > 0:
        parser.error("expected a case that exists, at least one round, and some seconds")
    console = Console(width=160)
    with tempfile.TemporaryDirectory(dir=options.models) as scratch:
        kept = options.models or Path(scratch) / "compiled"
        compiled = {name: compile_model(name, kept) for name in dict.fromkeys(case.source for case in chosen)}
        repository = Path(scratch) / "served"
        services = [serve_copy(case, compiled[case.source], repository) for case in chosen]
        flags = [f"--backend-config={backend},{setting}" for backend in _BACKENDS.values() for setting in _SETTINGS]
        results: list[Comparison] = []
        with this_checkout().server(repository, Path(scratch), (), flags) as server:
            generator = Generator(Path(scratch), is_native=False)
            for case, service in zip(chosen, services, strict=True):
                for found in compare(case, service, server, generator, console, seconds=options.seconds, rounds=options.rounds):
                    results.append(found)
                    console.print(
                        f"{case.name}, {found.load}: p99 predicted {found.predicted_ms(99):.1f} ms, measured {found.measured_ms(99):.1f} ms"
                    )
    print_comparisons(results, console)
    print_speed(services[-1], Batching(services[-1].batch_sizes[-1]), console)


if __name__ == "__main__":
    end_on_sigterm()
    main()
