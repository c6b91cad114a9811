"""The four networks of the published GCU tables on one simulated i20: raw, over the wire alone, and served; beside the published ratio.

    python -m benchmarks.gcu_served                        # all networks at the published batches: about five minutes
    python -m benchmarks.gcu_served --networks resnet50 --rounds 1
    python -m benchmarks.gcu_served --single               # latencies at batch 1, one request at a time

The card is paced in real time and computes nothing (`pacing: realtime`, `numerics: off`): it takes as long as its cost model says. The same
number of batches is on its way everywhere:

virtual  the cost model on a virtual clock, without this host: what the card alone does
raw      the runtime API alone, in this process: copies to the card, the run, copies back, each caller with a stream and buffers of its own
wire     a bare grpc.aio echo: the same request and response messages, without any work between them
served   `serve` in a process of its own

The client of wire and served is `large_calls`, because grpcio's costs more CPU time than the server.

Each round measures the last three in turn; the table shows the medians. No server can be faster than the slower of card and wire: the
ratio is to that. All figures of the card are simulated.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import onnx
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks.device_times import gcu_call_times
from benchmarks.gcu_networks import gcu_network
from benchmarks.gcu_published import PUBLISHED, PublishedNetwork
from benchmarks.large_calls import large_closed_loop
from benchmarks.processes import end_on_sigterm
from benchmarks.requests import GRPC, Request, encoded
from benchmarks.servers import EchoServer, ServerUnderTest, this_checkout
from stoker.backends.gcu.executable import read_executable
from stoker.backends.gcu.hardware import I20
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime import Device, Engine, GcuSystem
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing
from stoker.cli.plan.load import Batching, closed_loop
from stoker.cli.plan.load_simulation import LoadFigures, simulate

# Three batches of YOLOv5s and their responses are more than the default holds.
_BACKEND = (
    "--limit=bytes_in_flight=4294967296",
    "--backend-config=topsinference,pacing=realtime",
    "--backend-config=topsinference,numerics=off",
)
#: Bounds of one measurement.
_MAX_REQUESTS = 5_000
_PATIENCE_S = 60.0
_VIRTUAL_REQUESTS = 1_000
_TARGET = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How each measurement is driven."""

    in_flight: int
    warmup_s: float
    seconds: float


@dataclass(slots=True)
class Measured:
    """Medians over rounds, of batches a second and of latencies in milliseconds, by `raw`, `wire` and `served`; and the figures of the card
    on a virtual clock.
    """

    virtual: LoadFigures
    batches_per_s: dict[str, list[float]] = field(default_factory=dict)
    mean_ms: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, batches_per_s: float, mean_ms: float) -> None:
        """One round's window."""
        self.batches_per_s.setdefault(kind, []).append(batches_per_s)
        self.mean_ms.setdefault(kind, []).append(mean_ms)


def compile_network(network: PublishedNetwork, batch: int, repository: Path) -> Path:
    """Builds a network and compiles it by `stoker compile`; returns the model.exec.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    name = model_name(network)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{name}.onnx"
        onnx.save(ir.to_proto(gcu_network(network.name, batch, seed=0)), source)
        command = [
            sys.executable, "-m", "stoker.compiler.cli", "--target", "gcu", "--input_model", str(source), "--batch_sizes", str(batch),
            "--model_repository", str(repository), "--model_name", name, "--disable_compilation_progress_bar",
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return repository / name / "1" / "model.exec"


def model_name(network: PublishedNetwork) -> str:
    """As it is served."""
    return network.name.replace(" ", "_")


def zeros(executable: GcuExecutable, name: str, batch: int) -> Request:
    """A ModelInferRequest of zeros for `batch` samples."""
    inputs = {tensor.name: np.zeros([batch, *tensor.dims], tensor.dtype.numpy) for tensor in executable.inputs}
    return encoded(name, inputs, GRPC, is_heavy=True)


def first_response(server: ServerUnderTest, request: Request) -> bytes:
    """The response message of one call, for the echo."""
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", unlimited) as channel:
        reply: bytes = channel.unary_unary(request.call.request.path)(request.call.request.message.SerializeToString())
        return reply


def virtual(executable: GcuExecutable, batch: int, in_flight: int) -> LoadFigures:
    """The card with `in_flight` callers, as in `raw`, on a virtual clock."""
    service = gcu_call_times(executable, I20, request_rows=batch, pipeline_depth=in_flight)
    return simulate(service, Batching(batch), closed_loop(in_flight, batch), requests=_VIRTUAL_REQUESTS)


def raw(executable: GcuExecutable, batch: int, load: Load) -> tuple[float, float]:
    """The runtime alone: `in_flight` threads, each with one batch after the other; batches a second, and their mean latency in ms."""
    ends: list[tuple[int, int]] = []
    with GcuSystem(cards=1, pacing=Pacing.REALTIME, numerics=Numerics.OFF).acquire(0) as device:
        engine = device.load(executable)
        begun_ns = time.monotonic_ns()
        stop_ns = begun_ns + round((load.warmup_s + load.seconds) * 1e9)
        callers = [threading.Thread(target=_call, args=(device, engine, batch, stop_ns, ends)) for _ in range(load.in_flight)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    ends.sort()
    in_window = [each for each in ends if each[0] >= begun_ns + load.warmup_s * 1e9]
    opened_ns, closed_ns = in_window[0][0], in_window[-1][0]
    latencies = [latency for _, latency in in_window[1:]]
    return len(latencies) / (closed_ns - opened_ns) * 1e9, statistics.fmean(latencies) / 1e6


def _call(device: Device, engine: Engine, batch: int, stop_ns: int, ends: list[tuple[int, int]]) -> None:
    sent = [np.zeros(tensor.sample_bytes * batch, np.uint8) for tensor in engine.inputs]
    received = [np.zeros(tensor.sample_bytes * batch, np.uint8) for tensor in engine.outputs]
    inputs, outputs = ([device.allocate(array.nbytes) for array in arrays] for arrays in (sent, received))
    stream = device.create_stream()
    now = time.monotonic_ns()
    for _ in range(_MAX_REQUESTS):
        for array, buffer in zip(sent, inputs, strict=True):
            stream.copy_to_device(array, buffer)
        engine.run_with_batch(batch, inputs, outputs, stream)
        for array, buffer in zip(received, outputs, strict=True):
            stream.copy_to_host(buffer, array)
        stream.synchronize(_PATIENCE_S)
        then, now = now, time.monotonic_ns()
        ends.append((now, now - then))
        if now >= stop_ns:
            return


def measure(network: PublishedNetwork, batch: int, path: Path, served: ServerUnderTest, scratch: Path, load: Load, rounds: int) -> Measured:
    """Raw, wire and served in turn, `rounds` times.

    Raises:
        CallFailed: A request failed.
    """
    executable = read_executable(path)
    request = zeros(executable, model_name(network), batch)
    response = scratch / f"{model_name(network)}_{batch}.response"
    response.write_bytes(first_response(served, request))
    measured, message = Measured(virtual(executable, batch, load.in_flight)), request.call.request.message.SerializeToString()
    with EchoServer("bytes", response) as echo:
        for _ in range(rounds):
            measured.add("raw", *raw(executable, batch, load))
            for kind, server in (("wire", echo), ("served", served)):
                loop = large_closed_loop(
                    server.port(True), request.call.request.path, message,
                    in_flight=load.in_flight, warmup_s=load.warmup_s, seconds=load.seconds,
                )  # fmt: skip
                measured.add(kind, loop.calls_per_s, loop.mean_ms)
    return measured


def print_batches(results: Sequence[tuple[PublishedNetwork, Measured]], in_flight: int, console: Console) -> None:
    """Throughput at the published batches."""
    table = Table(title=f"simulated i20, {in_flight} batches on their way, samples a second", title_justify="left")
    headings = (
        "network",
        "batch",
        "virtual",
        "raw",
        "wire",
        "served",
        "served / min(raw, wire)",
        "",
        "served / raw",
        "published served / raw",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("network", "") else "right")
    for network, each in results:
        rates = {kind: network.batch * statistics.median(values) for kind, values in each.batches_per_s.items()}
        ratio = rates["served"] / min(rates["raw"], rates["wire"])
        verdict = "ok" if ratio >= _TARGET else f"below {_TARGET}"
        table.add_row(
            network.name, str(network.batch), f"{each.virtual.rows_per_s:,.1f}",
            *(f"{rates[kind]:,.1f}" for kind in ("raw", "wire", "served")), f"{ratio:.3f}", verdict,
            f"{rates['served'] / rates['raw']:.3f}", f"{network.raw_ms / network.served_ms:.3f}",
        )  # fmt: skip
    console.print(table)


def print_singles(results: Sequence[tuple[PublishedNetwork, Measured]], console: Console) -> None:
    """Latency at batch 1."""
    table = Table(title="simulated i20, batch 1, one request at a time, mean ms", title_justify="left")
    for heading in ("network", "virtual", "raw", "wire", "served", "published, served"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for network, each in results:
        means = [f"{statistics.median(each.mean_ms[kind]):.2f}" for kind in ("raw", "wire", "served")]
        table.add_row(network.name, f"{each.virtual.mean_s * 1e3:.2f}", *means, f"{network.single_ms:.2f}")
    console.print(table)
    console.print("The published BERT computed its full static batch of 120 for one sample; here a batch of 1 is compiled beside it.")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="", help="only networks whose name contains this")
    parser.add_argument("--in-flight", type=int, default=3, help="batches on their way (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured (default %(default)s)")
    parser.add_argument("--single", action="store_true", help="measure batch 1, one request at a time, instead")
    options = parser.parse_args(arguments)
    chosen = [network for network in PUBLISHED if options.networks in network.name]
    if not chosen:
        parser.error(f"no network's name contains '{options.networks}'; there are {', '.join(each.name for each in PUBLISHED)}")
    console = Console(width=150)
    in_flight = 1 if options.single else options.in_flight
    load = Load(in_flight=in_flight, warmup_s=1.0, seconds=options.seconds)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for network in chosen:
            repository, scratch = Path(folder) / model_name(network) / "models", Path(folder) / model_name(network)
            batch = 1 if options.single else network.batch
            console.print(f"compiling {network.name} for batch {batch}")
            path = compile_network(network, batch, repository)
            with this_checkout().server(repository, scratch, (), _BACKEND) as served:
                results.append((network, measure(network, batch, path, served, scratch, load, options.rounds)))
            shutil.rmtree(scratch)
    if options.single:
        print_singles(results, console)
    else:
        print_batches(results, in_flight, console)


if __name__ == "__main__":
    end_on_sigterm()
    main()
