"""From an ONNX model to a service on a simulated IPU, step by step; no card is needed, and all times of the device are modelled.

    .venv/bin/python examples/ipu/walkthrough.py

1. the model: the digits classifier of the sample repository, or one of yours: `--model FILE` takes any ONNX file with the same inputs
   (`torch.onnx.export` with a dynamic batch dimension makes such files);
2. the choice: every precision with every batch size is compiled and run, and a table shows latency, throughput, memory and accuracy; the
   fastest one wins that stays within `--latency_us` and within `--points` of the source's accuracy;
3. the compilation: `stoker compile` makes the executable and a served version of it;
4. the API: `ModelRunner` runs the executable, also on a batch that is not the compiled one;
5. the service: a server in a child process, called over gRPC and REST.

Takes some seconds. `--keep FOLDER` keeps the files. Needs the extras `compile` and `examples`.
"""

import argparse
import itertools
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from child_server import COMMANDS, server

from stoker.backends.ipu.compile.compiler import compile_and_export
from stoker.backends.ipu.compile.memory import OutOfTileMemory
from stoker.backends.ipu.runtime import ModelRunner, RuntimeConfig
from stoker.backends.ipu.timing import step_timing
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.source import read_onnx
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from stoker_client import GrpcClient, HttpClient

ROOT = Path(__file__).resolve().parents[2]
IPU_VERSION = "ipu21"  # a C600: the one with FP8
PRECISIONS = ("fp32", "fp16", "fp8")
BATCH_SIZES = (1, 4, 16, 32, 64)
NAME = "digits_c600"
#: Images that FP8's scales are searched with, whole batches of every size; accuracy is counted on the others.
CALIBRATION_IMAGES = 64

console = Console(soft_wrap=True)


@dataclass(frozen=True)
class Candidate:
    """One way to compile the model.

    Attributes:
        latency_us, images_per_s: Of the simulated device.
        tile_share: Of its fullest tile's memory.
        accuracy: Share of images classified correctly.
    """

    precision: str
    batch: int
    latency_us: float
    images_per_s: float
    tile_share: float
    accuracy: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "model_repos/digits/1/model.onnx", help="ONNX file (default: %(default)s)")
    parser.add_argument("--latency_us", type=float, default=50.0, help="longest latency of a batch (default: %(default)s)")
    parser.add_argument("--points", type=float, default=0.5, help="percentage points of accuracy that may be lost (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to leave executable and repository")
    options = parser.parse_args()
    with np.load(ROOT / "examples/digits/heldout.npz") as heldout:
        images, digits = heldout["images"].astype(np.float32), heldout["digits"]
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.keep or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            walk(options.model, images, digits, folder, options.latency_us, options.points)
    except CompileError as error:
        raise SystemExit(f"walkthrough: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def walk(path: Path, images: np.ndarray, digits: np.ndarray, folder: Path, latency_us: float, points: float) -> None:
    heading("1. The model")
    calibration, images, digits = images[:CALIBRATION_IMAGES], images[CALIBRATION_IMAGES:], digits[CALIBRATION_IMAGES:]
    samples = folder / "calibration.pickle"
    samples.write_bytes(pickle.dumps({"image": calibration}))
    source = onnxruntime.InferenceSession(read_onnx(path).SerializeToString(), providers=["CPUExecutionProvider"])
    expected = source.run(["scores"], {"image": images})[0]
    wanted = accuracy(expected, digits)
    console.print(f"{path}: accuracy {wanted:.2%} of {len(images)} images on ONNX Runtime")

    heading("2. The choice")
    ways = itertools.product(PRECISIONS, BATCH_SIZES)
    tried = [measured(path, precision, batch, samples, images, digits, folder) for precision, batch in ways]
    candidates = [each for each in tried if each is not None]
    good = [each for each in candidates if each.latency_us <= latency_us and each.accuracy >= wanted - points / 100]
    if not good:
        show(candidates, None)
        raise SystemExit(f"nothing is within {latency_us:g} us and {points:g} points; allow more")
    chosen = max(good, key=lambda each: each.images_per_s)
    show(candidates, chosen)
    console.print(
        f"Chosen: {chosen.precision}, batch {chosen.batch}: the fastest within {latency_us:g} us and {points:g} points of the source."
    )

    heading("3. The compilation")
    words = ["compile", "--target", "ipu", "--input_model", str(path), "--output_dir", str(folder), "--export_popef"]
    words += ["--batch_size", str(chosen.batch), "--batch_axis", "0", "--precision", chosen.precision, "--ipu_version", IPU_VERSION]
    if chosen.precision == "fp8":
        words += ["--calibration_with_data", "--data_preprocess", str(samples)]
    words += ["--model_repository", str(folder / "models"), "--model_name", NAME, "--disable_compilation_progress_bar"]
    run([str(COMMANDS / "stoker"), *words])

    heading("4. The API")
    config = RuntimeConfig(batching_dim=0)  # requests of any size; what is missing of a batch is padded
    with ModelRunner(folder / "executable.popef", config) as runner:
        (image,) = runner.get_execute_inputs()
        (scores,) = runner.get_execute_outputs()
        console.print(
            f"{image.name} {list(image.shape)} {image.numpy_data_type()} -> {scores.name} {list(scores.shape)} {scores.numpy_data_type()}"
        )
        few = images[:5].astype(image.numpy_data_type())
        future = runner.execute_async({image.name: few})
        console.print(f"5 images: {future.result()[scores.name].argmax(axis=1)}, they show {digits[:5]}")

    heading("5. The service")
    with server(folder / "models", folder) as (grpc, http):
        for protocol, kind, address in (("gRPC", GrpcClient, grpc), ("REST", HttpClient, http)):
            with kind(address) as client:
                found = np.concatenate([client.infer(NAME, {"image": part})["scores"] for part in np.array_split(images, 20)])
            console.print(
                f"{protocol}: accuracy {accuracy(found, digits):.2%}, furthest from the source {np.abs(found - expected).max():.4f}"
            )


def measured(
    path: Path, precision: str, batch: int, samples: Path, images: np.ndarray, digits: np.ndarray, folder: Path
) -> Candidate | None:
    """The model compiled so and run; None where it does not fit."""
    searched = {"calibration_with_data": True, "data_preprocess": str(samples)} if precision == "fp8" else {}
    converter = Converter(precision=precision, batch_size=batch, batch_axis=0, **searched)
    popef = folder / "candidate.popef"
    try:
        compiled = compile_and_export(
            converter.convert_internal(read_onnx(path)), ["scores"], popef, CompilerOptions(ipu_version=IPU_VERSION)
        )
    except OutOfTileMemory as error:
        console.print(f"{precision}, batch {batch}: {str(error).splitlines()[0]}")
        return None
    timing = step_timing(compiled.program, 0)
    with ModelRunner(popef, RuntimeConfig(batching_dim=0)) as runner:
        (image,) = runner.get_execute_inputs()
        scores = runner.execute({"image": images.astype(image.numpy_data_type())})["scores"]
    fullest = max(sum(account.by_category.values()) / account.capacity_bytes for account in compiled.program.memory)
    return Candidate(precision, batch, 1e6 * timing.latency_s, timing.rows_per_s, fullest, accuracy(scores, digits))


def show(candidates: Sequence[Candidate], chosen: Candidate | None) -> None:
    table = Table(title=f"Simulated C600 ({IPU_VERSION}); latency and throughput are modelled, accuracy is counted")
    for name in ("precision", "batch", "latency us", "images/s", "fullest tile", "accuracy", ""):
        table.add_column(name, justify="left" if name == "precision" else "right")
    for each in candidates:
        figures = (f"{each.latency_us:.1f}", f"{each.images_per_s:,.0f}", f"{each.tile_share:.1%}", f"{each.accuracy:.2%}")
        table.add_row(each.precision, str(each.batch), *figures, "<-" if each is chosen else "")
    console.print(table)


def run(words: Sequence[str]) -> None:
    """Prints a command, runs it, and ends if it fails."""
    print(f"$ {' '.join([Path(words[0]).name, *words[1:]])}", flush=True)
    if subprocess.run(words, check=False).returncode != 0:  # noqa: S603 - our own command
        raise SystemExit(1)


def accuracy(scores: np.ndarray, digits: np.ndarray) -> float:
    """Share of images whose highest score is the right one."""
    return float((scores.argmax(axis=1) == digits).mean())


def heading(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


if __name__ == "__main__":
    main()
