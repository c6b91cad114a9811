"""`python -m benchmarks.peer_rows`: rows a second of ResNet-50 in this server, in raw onnxruntime and in Triton, in one run.

    raw onnxruntime, Triton, onnx backend, openvino bf16, openvino int8 and bf16: one window each in turn, round after round

All have the same cores (`--cores`, default all) and as many requests in flight. A round's ratio is of windows of that round; the median
over the rounds is compared with the target. The verdict is `unclear` if other processes used the machine: CPU time per row on one core
(`--cores 1`, without idle threads that wait for each other) is comparable even then. Without Triton (`--triton`, `--onnxruntime-include`)
or without the package `openvino`, their part is left out.
"""

import argparse
import importlib.util
import os
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cpu_executors import INT8, compile_for_cpu
from benchmarks.load import Generator, InFlight
from benchmarks.machine import describe_machine
from benchmarks.models import BenchModel, build_repository
from benchmarks.processes import end_on_sigterm
from benchmarks.raw_engine import RawEngine
from benchmarks.report import verdict_table
from benchmarks.requests import GRPC, HTTP_BINARY, request_of
from benchmarks.results import Verdict, Window
from benchmarks.servers import ServerUnderTest, this_checkout
from benchmarks.triton import TritonMissing, add_triton_options, triton_contender
from stoker.backends.api.cpu import usable_cores

_PROTOCOLS = (GRPC, HTTP_BINARY)
#: Batch sizes of raw onnxruntime, whose best counts.
_RAW_BATCHES = (4, 8)
RAW, TRITON, SERVED, BF16, INT8_BF16 = "raw onnxruntime", "triton", "resnet50", "resnet50-bf16", "resnet50-int8"
#: Least ratio of rows/s by what is measured and what it is compared with.
TARGETS: Mapping[tuple[str, str], float] = {(SERVED, RAW): 0.98, (BF16, TRITON): 2.0, (INT8_BF16, TRITON): 3.5}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        name: What runs the network: `TRITON`, or a model of this server.
        server: The server.
        model: The model on it.
        protocol: A protocol of `benchmarks.requests`.
    """

    name: str
    server: ServerUnderTest
    model: BenchModel
    protocol: str


def judge(found: Mapping[tuple[str, str], Sequence[Window]]) -> list[Verdict]:
    """The verdicts on `TARGETS`, for each protocol.

    Args:
        found: By name and protocol, one window for each round; `RAW` has the protocol "".
    """
    verdicts = []
    for (name, other), least in TARGETS.items():
        for protocol in _PROTOCOLS:
            served, base = found.get((name, protocol)), found.get((other, "" if other == RAW else protocol))
            if served and base:
                ratios = [measured.rows_per_s / against.rows_per_s for measured, against in zip(served, base, strict=True)]
                verdict = Verdict.of_rounds(f"{name} over {other}, {protocol}: rows/s", ratios, least, "x", at_least=True)
                verdicts.append(replace(verdict, foreign_cores=statistics.median(each.foreign_cores for each in (*served, *base))))
    return verdicts


def rows_table(found: Mapping[tuple[str, str], Sequence[Window]]) -> Table:
    """The medians of each executor, and the rows/s of its rounds."""
    table = Table(title="ResNet-50, medians", title_justify="left")
    for heading in ("executor", "protocol", "rows/s", "CPU ms/row", "others", "rounds"):
        table.add_column(heading, justify="left" if heading in ("executor", "protocol", "rounds") else "right")
    for (name, protocol), windows in found.items():
        rows_per_s = [each.rows_per_s for each in windows]
        cpu_ms = statistics.median(each.server_cpu_us / each.rows / 1e3 for each in windows)
        foreign_cores = statistics.median(each.foreign_cores for each in windows)
        rounds = ", ".join(f"{each:.1f}" for each in rows_per_s)
        table.add_row(name, protocol, f"{statistics.median(rows_per_s):.1f}", f"{cpu_ms:.2f}", f"{foreign_cores:.2f}", rounds)
    return table


def build_models(shared: Path, ours: Path, scratch: Path) -> list[BenchModel]:
    """Writes ResNet-50 into `shared`, and into `ours` with its other precisions if openvino is installed; returns the models of `ours`."""
    source = build_repository(shared, (SERVED,))[SERVED]
    shutil.copytree(shared / SERVED, ours / SERVED)
    models = [source]
    if importlib.util.find_spec("openvino") is not None:
        models.append(_add_precision(ours, source, BF16, source.path))
        models.append(_add_precision(ours, source, INT8_BF16, compile_for_cpu(source.path, INT8, scratch)))
    return models


def measure(
    rows: Sequence[Row], raw: RawEngine, generator: Generator, concurrency: int, *, rounds: int, seconds: float
) -> dict[tuple[str, str], list[Window]]:
    """A window of each row in each round, after the best one of raw onnxruntime.

    Raises:
        WrongResponse: More than 1 % of the requests failed.
        NativeLoadFailed: h2load failed.
    """
    found = defaultdict[tuple[str, str], list[Window]](list)
    for number in range(rounds):
        source = rows[0].model
        windows = (raw.measure(source, batch, seconds, number) for batch in _RAW_BATCHES)
        found[RAW, ""].append(max(windows, key=lambda each: each.rows_per_s))
        for row in rows:
            request = request_of(row.model, row.protocol)
            window = generator.closed_for(row.server, request, InFlight.of(concurrency, request), seconds, number)
            found[row.name, row.protocol].append(window)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window (default %(default)s)")
    parser.add_argument("--cores", type=int, default=usable_cores(), help="of each server (default: all)")
    parser.add_argument("--in-flight", type=int, default=32, help="requests (default %(default)s)")
    add_triton_options(parser)
    options = parser.parse_args()
    console = Console(width=190)
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in describe_machine().items()))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        scratch = Path(folder)
        models = build_models(scratch / "shared", scratch / "ours", scratch)
        every = sorted(os.sched_getaffinity(0))
        cores = every[: options.cores]
        generator, raw = Generator(scratch, every[options.cores :]), RawEngine(scratch, len(cores), cores)
        running.callback(raw.close)
        rows = []
        try:
            peer = triton_contender(options.triton, options.onnxruntime_include)
            triton = running.enter_context(peer.server(scratch / "shared", scratch / TRITON, cores))
            rows += [Row(TRITON, triton, models[0], protocol) for protocol in _PROTOCOLS]
        except TritonMissing as missing:
            console.print(f"[yellow]Triton is left out: {missing}[/]")
        served = running.enter_context(this_checkout().server(scratch / "ours", scratch / "served", cores))
        rows += [Row(model.name, served, model, protocol) for model in models for protocol in _PROTOCOLS]
        expected = raw.reference(models[0])
        for row in rows:
            generator.check(row.server, request_of(row.model, row.protocol), expected, is_exact=row.name in (TRITON, SERVED))
        found = measure(rows, raw, generator, options.in_flight, rounds=options.rounds, seconds=options.seconds)
    console.print(rows_table(found))
    console.print(verdict_table(judge(found)))


def _add_precision(root: Path, source: BenchModel, name: str, path: Path) -> BenchModel:
    """A copy of the model in bf16, run by openvino from the file `path`."""
    folder = root / name
    shutil.copytree(root / source.name, folder)
    made = folder / "1" / "model.onnx"
    shutil.copyfile(path, made)
    config = (folder / "config.pbtxt").read_text(encoding="utf-8").replace('platform: "onnxruntime_onnx"', 'backend: "openvino"')
    config = config.replace(f'name: "{source.name}"', f'name: "{name}"')
    config += 'parameters { key: "precision" value { string_value: "bf16" } }\n'
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    return replace(source, name=name, path=made)


if __name__ == "__main__":
    end_on_sigterm()
    main()
