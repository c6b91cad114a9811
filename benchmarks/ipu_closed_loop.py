"""ResNet-50 and BERT-base, built with seeded weights, compiled for a simulated C600: a closed loop beside published figures.

    python -m benchmarks.ipu_closed_loop                       # all rows: about three minutes
    python -m benchmarks.ipu_closed_loop --rows resnet --clients 4 --paced --seconds 3

Each model is compiled as users compile, in a process of its own, whose time and peak memory are printed. The figures of the closed loop, in
which `clients` each send one batch after the other, come from the cost model on a virtual clock: they depend on no host. What is published
was measured on a real C600: by ByteMLPerf in such a loop with 3 to 5 clients, by PopRT's report as throughput only.

`--paced` also runs the loop on this host: `clients` threads call one `ModelRunner` with `pacing: realtime` and `numerics: off`. The
simulated device then takes as long as its cost model says, and this host's threads add their own delays.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks.closed_loop import LoopMeasurement, LoopSettings, measure, predicted
from benchmarks.ipu_networks import Precision, bert_base, resnet50

_SEED = 0
#: Bounds of one compilation, as the project promises them for 2 cores.
COMPILE_LIMIT_S, COMPILE_LIMIT_MIB = 180, 4096
#: As ByteMLPerf compiled ResNet-50; BERT without overlapped IO, as PopRT's report ran it.
_SETTINGS = {
    "resnet50": ("--num_io_tiles", "64", "--batches_per_step", "128", "--compiler_options", "stream_buffering_depth=2"),
    "bert_base": ("--batches_per_step", "4"),
}
_FP8_PARAMS = "F143,F143,-3,-3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Measurements of a real C600: rows a second, and where known the mean and 99th percentile of the latency in ms."""

    source: str
    rows_per_s: int
    mean_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model to compile and run."""

    network: str
    precision: str
    batch: int
    published: Published

    @property
    def label(self) -> str:
        return f"{self.network} {self.precision} b{self.batch}"

    def model(self) -> ir.Model:
        """In FP32, as a framework would export it: the compiler converts."""
        if self.network == "resnet50":
            return resnet50(self.batch, Precision.FP32, seed=_SEED)
        return bert_base(self.batch, Precision.FP32, is_gelu_fused=False, seed=_SEED)


def _byte_ml_perf(rows_per_s: int, mean_ms: float, p99_ms: float) -> Published:
    return Published(source="ByteMLPerf", rows_per_s=rows_per_s, mean_ms=mean_ms, p99_ms=p99_ms)


def _report(rows_per_s: int) -> Published:
    return Published(source="PopRT report", rows_per_s=rows_per_s)


#: BERT's ByteMLPerf rows are of packed sequences (batch 40 and 45), which say nothing of the unpacked model: PopRT's report stands in.
ROWS = (
    Row(network="resnet50", precision="fp32", batch=4, published=_report(2864)),
    Row(network="resnet50", precision="fp16", batch=4, published=_byte_ml_perf(7062, 2.24, 2.53)),
    Row(network="resnet50", precision="fp16", batch=32, published=_byte_ml_perf(13542, 9.33, 10.96)),
    Row(network="resnet50", precision="fp8", batch=4, published=_byte_ml_perf(7966, 1.98, 3.24)),
    Row(network="resnet50", precision="fp8", batch=32, published=_byte_ml_perf(18851, 6.70, 8.54)),
    Row(network="bert_base", precision="fp32", batch=2, published=_report(525)),
    Row(network="bert_base", precision="fp16", batch=8, published=_report(1208)),
    Row(network="bert_base", precision="fp8", batch=8, published=_report(1487)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What compiling took on this host."""

    path: Path
    seconds: float
    peak_mib: float


def compile_row(row: Row, folder: Path) -> Compilation:
    """Builds the model and compiles it by `stoker compile`, in a child process.

    Raises:
        RuntimeError: it failed; with what it printed.
    """
    source = folder / f"{row.label.replace(' ', '_')}.onnx"
    model = row.model()
    products = [node.name or "" for node in model.graph if node.op_type in ("Conv", "MatMul", "Gemm")]
    onnx.save(ir.to_proto(model), source)
    command = [
        sys.executable, "-m", "stoker.compiler.cli", "--target", "ipu", "-i", str(source), "--precision", row.precision,
        "--ipu_version", "ipu21",
        "--export_popef", "--output_dir", str(source.with_suffix("")), "--disable_compilation_progress_bar", *_SETTINGS[row.network],
    ]  # fmt: skip
    if row.precision == "fp8":  # the vendors kept the first convolution and the last product in fp16
        command += ["--fp8_params", _FP8_PARAMS, "--fp8_skip_op_names", f"{products[0]},{products[-1]}"]
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begin
        if child.returncode:
            output.seek(0)
            raise RuntimeError(f"compiling {row.label} failed:\n{output.read().decode(errors='replace')}")
    source.unlink()
    return Compilation(path=source.with_suffix("") / "executable.popef", seconds=seconds, peak_mib=usage.ru_maxrss / 1024)


def print_compilations(results: Sequence[tuple[Row, Compilation]], console: Console) -> None:
    """How long the compiler took, and how much memory."""
    table = Table(title="compiled on this host, read to file written", title_justify="left")
    for heading in ("model", "seconds", "peak MiB", "file MiB", f"within {COMPILE_LIMIT_S} s, {COMPILE_LIMIT_MIB:,} MiB"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row, each in results:
        is_within = each.seconds <= COMPILE_LIMIT_S and each.peak_mib <= COMPILE_LIMIT_MIB
        table.add_row(
            row.label,
            f"{each.seconds:.1f}",
            f"{each.peak_mib:,.0f}",
            f"{each.path.stat().st_size / 2**20:,.1f}",
            "yes" if is_within else "no",
        )
    console.print(table)


def print_loops(results: Sequence[tuple[Row, LoopMeasurement]], clients: int, console: Console) -> None:
    """Simulated and published, side by side."""
    table = Table(title=f"C600, closed loop on a virtual clock, {clients} clients with a batch each", title_justify="left")
    for heading in (
        "model",
        "QPS simulated",
        "published",
        "error",
        "mean ms sim.",
        "published",
        "error",
        "P99 ms sim.",
        "published",
        "error",
        "published by",
    ):
        table.add_column(heading, justify="left" if heading in ("model", "published by") else "right")
    for row, each in results:
        known = row.published
        table.add_row(
            row.label,
            f"{each.rows_per_s:,.0f}",
            f"{known.rows_per_s:,}",
            f"{each.rows_per_s / known.rows_per_s - 1:+.1%}",
            *_beside(each.mean_s * 1e3, known.mean_ms),
            *_beside(each.p99_s * 1e3, known.p99_ms),
            known.source,
        )
    console.print(table)
    console.print(
        "Simulated figures come from a cost model on a virtual clock, in which calls take constant times; published ones from a real C600."
    )
    console.print(
        "ByteMLPerf ran BERT on packed sequences only (fp16 3134, fp8 4464 items/s), which these unpacked models cannot be held against."
    )


def _beside(ms: float, published_ms: float | None) -> tuple[str, str, str]:
    """A time, the published one, and the error."""
    return (f"{ms:.2f}", "", "") if published_ms is None else (f"{ms:.2f}", f"{published_ms:.2f}", f"{ms / published_ms - 1:+.1%}")


def print_paced(results: Sequence[tuple[Row, LoopMeasurement, LoopMeasurement]], console: Console) -> None:
    """The paced run of this host beside the virtual clock."""
    table = Table(title="the same loop paced in real time by this host", title_justify="left")
    for heading in ("model", "QPS paced", "/ virtual", "mean ms paced", "/ virtual", "P99 ms paced", "/ virtual"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row, virtual, paced in results:
        cells = []
        for text, ours, theirs in (
            (f"{paced.rows_per_s:,.0f}", paced.rows_per_s, virtual.rows_per_s),
            (f"{paced.mean_s * 1e3:.2f}", paced.mean_s, virtual.mean_s),
            (f"{paced.p99_s * 1e3:.2f}", paced.p99_s, virtual.p99_s),
        ):
            cells += [text, f"{ours / theirs:.2f}"]
        table.add_row(row.label, *cells)
    console.print(table)
    console.print("The ratios to the virtual clock are those of this host's threads: they say nothing about a C600.")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose name contains this, such as 'fp16' or 'bert'")
    parser.add_argument("--clients", type=int, default=4, help="clients with a request in flight each (default 4; ByteMLPerf had 3 to 5)")
    parser.add_argument("--paced", action="store_true", help="also run the loop on this host, paced in real time")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each paced run, after a warm-up (default 5)")
    options = parser.parse_args(arguments)
    chosen = [row for row in ROWS if options.rows in row.label]
    if not chosen:
        parser.error(f"no row contains '{options.rows}'; there are {', '.join(row.label for row in ROWS)}")
    console = Console(width=160)
    with tempfile.TemporaryDirectory() as folder:
        compiled = []
        for row in chosen:
            compiled.append((row, compile_row(row, Path(folder))))
            console.print(f"compiled {row.label} in {compiled[-1][1].seconds:.1f} s")
        print_compilations(compiled, console)
        loops = [(row, predicted(each.path, options.clients)) for row, each in compiled]
        print_loops(loops, options.clients, console)
        if options.paced:
            settings = LoopSettings(clients=options.clients, seconds=options.seconds)
            runs = [measure(each.path, settings) for _, each in compiled]
            print_paced([(row, virtual, paced) for (row, virtual), paced in zip(loops, runs, strict=True)], console)


if __name__ == "__main__":
    main()
