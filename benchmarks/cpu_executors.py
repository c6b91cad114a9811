"""`python -m benchmarks.cpu_executors`: measures ResNet-50 on this CPU with each executor and precision of Stoker, and with raw
onnxruntime.

Every executor is an instance as the server loads it, without a server; INT8 and BF16 are made by `stoker compile --target cpu`. All run in
this process in turn, one window each for each batch size, so that other load of the machine affects all equally. A round's ratio is an
executor's best batch over raw onnxruntime's best batch of the same round; the median over the rounds is reported. Outputs are compared with
raw onnxruntime's in FP32. Executors whose package is not installed are listed as left out.
"""

import dataclasses
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import typer
from rich.console import Console
from rich.table import Table

import stoker.compiler.cli
from benchmarks.machine import describe_machine
from benchmarks.models import build_repository
from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.batch import BatchItem, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.cpu import usable_cores
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.api.tensor import DataType

Array = npt.NDArray[np.float32]
Run = Callable[[Array], Array]

RAW = "raw onnxruntime, fp32"
_INPUT, _OUTPUT, _CLASSES, _IMAGE = "data", "resnetv17_dense0_fwd", 1000, (3, 224, 224)
_BATCHES = (1, 8)
_CALIBRATION_ROWS = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One way to run the network.

    Attributes:
        name: Name in the table.
        backend: The backend that serves it.
        words: Arguments of `stoker compile --target cpu`; None: the source file unchanged.
        parameters: Parameters of config.pbtxt.
        target: Target ratio to raw onnxruntime's best; None: there is none.
        package: A required package; empty: none beyond those of the server.
    """

    name: str
    backend: str
    words: tuple[str, ...] | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    target: float | None = None
    package: str = ""


INT8 = ("--precision", "int8")
EXECUTORS = (
    Executor(name="onnx backend, fp32", backend="onnxruntime", target=0.98),
    Executor(name="onnx backend, int8", backend="onnxruntime", words=INT8),
    Executor(name="openvino, f32", backend="openvino", package="openvino"),
    Executor(name="openvino, bf16", backend="openvino", parameters=(("precision", "bf16"),), target=1.9, package="openvino"),
    Executor(name="openvino, int8 and f32", backend="openvino", words=INT8, package="openvino"),
    Executor(
        name="openvino, int8 and bf16", backend="openvino", words=INT8, parameters=(("precision", "bf16"),), target=3.3, package="openvino"
    ),
)


@dataclasses.dataclass(slots=True)
class Figures:
    """The figures of one executor.

    Attributes:
        name: The executor's name.
        target: The executor's target ratio.
        rows_per_s: By batch size, the rows a second of each round.
        max_abs: Largest absolute difference of a logit from raw onnxruntime in FP32.
        cosine: Cosine similarity of both outputs.
        top1_agreement: Share of rows with the same largest logit.
    """

    name: str
    target: float | None
    rows_per_s: dict[int, list[float]]
    max_abs: float = 0.0
    cosine: float = 1.0
    top1_agreement: float = 1.0

    def best(self, round_number: int) -> float:
        """Rows a second of a round's best batch size."""
        return max(each[round_number] for each in self.rows_per_s.values())


def bench(
    window_s: Annotated[float, typer.Option(min=0.05, max=60, help="Seconds of a window.")] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Windows of each executor and batch size; medians are reported.")] = 5,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Threads of each executor; 0: all usable cores.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for cpu_executors.json.")] = Path("benchmarks/results"),
) -> None:
    """Measures the executors on this machine, in one run."""
    threads = threads or usable_cores()
    console = Console(width=None if sys.stdout.isatty() else 170)
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as scratch:
        runs = _runs(Path(scratch), threads, console)
        figures = measure(runs, window_s=window_s, rounds=rounds)
    output.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    path = output / "cpu_executors.json"
    found = [dataclasses.asdict(each) | {"ratio": ratio(each, figures[0])} for each in figures]
    path.write_text(
        json.dumps({"machine": machine, "threads": threads, "window_s": window_s, "executors": found}, indent=2) + "\n", "utf-8"
    )
    console.print(table(figures, f"ResNet-50, {threads} thread(s), {rounds} round(s) of {window_s:g} s windows, {machine['cpu']}"))
    console.print(f"wrote {path}")


def measure(runs: Sequence[tuple[str, float | None, Run]], *, window_s: float, rounds: int) -> list[Figures]:
    """Measures the executors in turn.

    Args:
        runs: Name, target and function of each; the others are compared with the first.
        window_s: Length of a window, seconds.
        rounds: Number of windows for each executor and batch size.
    """
    images = np.random.default_rng(1).standard_normal((max(_BATCHES), *_IMAGE), dtype=np.float32)
    expected = runs[0][2](images).astype(np.float64)
    figures = []
    for name, target, run in runs:
        found = run(images).astype(np.float64)
        figures.append(
            Figures(
                name,
                target,
                {batch: [] for batch in _BATCHES},
                max_abs=float(np.abs(found - expected).max()),
                cosine=float((found * expected).sum() / np.linalg.norm(found) / np.linalg.norm(expected)),
                top1_agreement=float((found.argmax(axis=1) == expected.argmax(axis=1)).mean()),
            )
        )
    for _ in range(rounds):
        for batch in _BATCHES:
            for each, (_, _, run) in zip(figures, runs, strict=True):
                each.rows_per_s[batch].append(_rows_per_s(run, images[:batch], window_s))
    return figures


def ratio(figures: Figures, raw: Figures) -> float:
    """The median over the rounds of the executor's best batch over raw onnxruntime's."""
    rounds = len(next(iter(raw.rows_per_s.values())))
    return statistics.median(figures.best(number) / raw.best(number) for number in range(rounds))


def table(figures: Sequence[Figures], title: str) -> Table:
    """The results as text."""
    shown = Table(title=title)
    for heading in ("executor", *(f"rows/s, batch {batch}" for batch in _BATCHES), "of raw best", "target", "max diff", "cosine", "top-1"):
        shown.add_column(heading, justify="left" if heading == "executor" else "right")
    for each in figures:
        reached = ratio(each, figures[0])
        verdict = "" if each.target is None else f">= {each.target:g} {'reached' if reached >= each.target else 'missed'}"
        speeds = (f"{statistics.median(speeds):.1f}" for speeds in each.rows_per_s.values())
        shown.add_row(
            each.name, *speeds, f"{reached:.2f}", verdict, f"{each.max_abs:.4f}", f"{each.cosine:.6f}", f"{each.top1_agreement:.0%}"
        )
    return shown


def compile_for_cpu(source: Path, words: tuple[str, ...], folder: Path) -> Path:
    """Compiles ResNet-50 by `stoker compile --target cpu`, calibrated by random images, into `folder`; returns the file.

    Raises:
        SystemExit: The compiler failed.
    """
    folder.mkdir(exist_ok=True)
    samples = folder / "samples.npz"
    np.savez(samples, data=np.random.default_rng(0).standard_normal((_CALIBRATION_ROWS, *_IMAGE), dtype=np.float32))
    batch = str(max(_BATCHES))
    options = ["--target", "cpu", "-i", str(source), "--batch_size", batch, "--batch_axis", "0", "--data_preprocess", str(samples)]
    code = stoker.compiler.cli.main([*options, *words, "--export_popef", "--output_dir", str(folder), "--disable_compilation_progress_bar"])
    if code:
        raise SystemExit(code)
    return folder / "model.onnx"


def _rows_per_s(run: Run, images: Array, window_s: float) -> float:
    run(images)  # the previous executor has evicted the caches
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < window_s:
        run(images)
        calls += 1
    return calls * len(images) / (time.perf_counter() - start)


def _runs(scratch: Path, threads: int, console: Console) -> list[tuple[str, float | None, Run]]:
    source = build_repository(scratch / "source", ("resnet50",))["resnet50"].path
    made: dict[tuple[str, ...] | None, Path] = {None: source}
    runs: list[tuple[str, float | None, Run]] = [(RAW, None, _raw(source, threads))]
    for executor in EXECUTORS:
        if executor.package and importlib.util.find_spec(executor.package) is None:
            console.print(f"left out: '{executor.name}' needs the package '{executor.package}'")
            continue
        if executor.words not in made:
            made[executor.words] = compile_for_cpu(source, executor.words or (), scratch / f"compiled{len(made)}")
        runs.append((executor.name, executor.target, _served(executor, made[executor.words], threads)))
    return runs


def _raw(model: Path, threads: int) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run([_OUTPUT], {_INPUT: images})[0])


def _served(executor: Executor, model: Path, threads: int) -> Run:
    """The model as the server loads it, and a function that makes its batches."""
    signature = ModelSignature(
        (TensorSpec(_INPUT, DataType.FP32, _IMAGE),), (TensorSpec(_OUTPUT, DataType.FP32, (_CLASSES,)),), max(_BATCHES)
    )
    request = LoadRequest(
        model_name="resnet50",
        version=1,
        files=ModelFiles(model.parent, {model.name: model.stat().st_size}),
        model_filename=model.name,
        signature=signature,
        parameters=dict(executor.parameters),
        instance_name=executor.name,
        cpu_threads=threads,
    )
    processor = processor_for(BackendRegistry().get(executor.backend).load(request), signature, SystemClock())

    def run(images: Array) -> Array:
        (outcome,) = processor.process([BatchItem({_INPUT: images}, len(images), (_OUTPUT,))]).outcomes
        if isinstance(outcome, Exception):
            raise outcome
        return np.asarray(outcome[_OUTPUT])

    return run


if __name__ == "__main__":
    typer.run(bench)
