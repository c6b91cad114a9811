"""Measures a model on this machine's CPU: a child process runs ONNX Runtime, and OpenVINO if it is installed.

What the runtimes take of memory and threads ends with the process, and so does a crash. Calls and time are bounded. `measure` is the
parent's part, `main` the child's.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.backends.api.clock import Clock, SystemClock

#: Bounds: calls of one batch size, seconds after which only the fewest calls are made, and seconds of the whole process.
MOST_CALLS = 30
LEAST_CALLS = 3
MOST_CALLS_S = 2.0
TIMEOUT_S = 60.0
#: A batch size is skipped if the one before it takes this long: it would only be slower.
LONGEST_CALL_S = 5.0

RUNTIMES = ("onnxruntime", "openvino")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The measured calls of one batch size.

    Attributes:
        runtime: Name and version.
        batch: Rows of a call.
        seconds: Time of each call, ascending; empty if it failed.
        problem: Why it failed.
    """

    runtime: str
    batch: int
    seconds: tuple[float, ...]
    problem: str = ""


def cpu_name() -> str:
    """Returns the name of this machine's processor, as far as the system gives one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or os.uname().machine


def measure(
    runtime: str, model: Path, shapes: Mapping[str, Sequence[int]], batched: Sequence[str], batches: Sequence[int], threads: int
) -> list[Timing]:
    """Measures in a child process. A batch size that the process does not reach in time is missing.

    Args:
        runtime: One of `RUNTIMES`.
        model: ONNX file whose batch is variable, or has the one size of `batches`.
        shapes: Shape of every input.
        batched: Inputs whose first dimension is the batch.
        batches: Batch sizes, ascending.
        threads: Threads of the runtime.
    """
    task = {
        "runtime": runtime,
        "model": str(model),
        "shapes": dict(shapes),
        "batched": list(batched),
        "batches": list(batches),
        "threads": threads,
    }
    with tempfile.TemporaryDirectory(prefix="stoker-plan-") as folder:
        result = Path(folder, "result.jsonl")
        words = [sys.executable, "-m", "stoker.cli.plan.cpu_timing", json.dumps(task), str(result)]
        paths = os.pathsep.join(path for path in sys.path if path)
        problem = ""
        try:
            # An argument list without a shell: names are not interpreted.
            ended = subprocess.run(  # noqa: S603
                words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
            if ended.returncode:
                last = ended.stderr.strip().splitlines()[-1:] or ["no output"]
                problem = f"the process ended with code {ended.returncode}: {last[0][:200]}"
        except subprocess.TimeoutExpired:
            problem = f"the process was stopped after {TIMEOUT_S:g} s"
        lines = result.read_text(encoding="utf-8").splitlines() if result.exists() else []
    found = [Timing(**{**each, "seconds": tuple(each["seconds"])}) for each in map(json.loads, lines)]
    missing = [size for size in batches if size not in {each.batch for each in found}]
    return found + [Timing(runtime=runtime, batch=size, seconds=(), problem=problem or "not measured") for size in missing]


def main(arguments: Sequence[str]) -> None:
    """Runs the child: one line of JSON for each batch size, as soon as it is measured."""
    task, result = json.loads(arguments[0]), Path(arguments[1])
    with result.open("w", encoding="utf-8") as lines:
        for timing in _timings(task):
            lines.write(
                json.dumps({"runtime": timing.runtime, "batch": timing.batch, "seconds": timing.seconds, "problem": timing.problem}) + "\n"
            )
            lines.flush()


def _timings(task: Mapping[str, Any]) -> Iterator[Timing]:
    import onnx

    from stoker.compiler.check import random_feeds
    from stoker.compiler.precision.number_types import numpy_feeds

    clock = SystemClock()
    structure = onnx.load(task["model"], load_external_data=False)
    made: tuple[str, Callable[[Mapping[str, Any]], object]] | None = None
    slowest_s = 0.0
    for batch in task["batches"]:
        if slowest_s > LONGEST_CALL_S:
            yield Timing(runtime=task["runtime"], batch=batch, seconds=(), problem=f"not measured: a smaller batch takes {slowest_s:.1f} s")
            continue
        shapes = {name: [batch, *shape[1:]] if name in task["batched"] else shape for name, shape in task["shapes"].items()}
        try:
            if made is None or task["runtime"] == "openvino":
                made = _MAKERS[task["runtime"]](task["model"], shapes, task["threads"])
            name, run = made
            feeds = numpy_feeds(random_feeds(_sized(structure, shapes)))
            seconds = _timed(lambda: run(feeds), clock)  # noqa: B023 - called at once
        except Exception as error:  # noqa: BLE001 - the runtimes' errors have no common class; whatever fails is the reason
            yield Timing(runtime=task["runtime"], batch=batch, seconds=(), problem=" ".join(str(error).split())[:200])
            continue
        slowest_s = max(seconds)
        yield Timing(runtime=name, batch=batch, seconds=tuple(sorted(seconds)))


def _timed(run: Callable[[], object], clock: Clock) -> list[float]:
    """Returns the seconds of some calls; of a single one if it takes too long to make more."""
    seconds: list[float] = []
    while len(seconds) < LEAST_CALLS + 1 or (len(seconds) < MOST_CALLS and sum(seconds) < MOST_CALLS_S):
        began = clock.now_ns()
        run()
        seconds.append((clock.now_ns() - began) * 1e-9)
        if len(seconds) == 1 and seconds[0] > LONGEST_CALL_S:
            return seconds
    return seconds[1:]  # the first one allocates memory, and chooses kernels


def _sized(structure: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    from stoker.compiler.target import fed_inputs

    for value in fed_inputs(structure):
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, shapes[value.name], strict=True):
            dim.dim_value = size
    return structure


def _onnxruntime(model: str, shapes: Mapping[str, Sequence[int]], threads: int) -> tuple[str, Callable[[Mapping[str, Any]], object]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return f"onnxruntime {onnxruntime.__version__}", lambda feeds: session.run(None, dict(feeds))


def _openvino(model: str, shapes: Mapping[str, Sequence[int]], threads: int) -> tuple[str, Callable[[Mapping[str, Any]], object]]:
    import openvino

    core = openvino.Core()
    read = core.read_model(model)
    read.reshape({name: list(shape) for name, shape in shapes.items()})
    compiled = core.compile_model(
        read, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    )
    request = compiled.create_infer_request()
    return f"openvino {openvino.__version__.partition('-')[0]}", lambda feeds: request.infer(dict(feeds))


_MAKERS = {"onnxruntime": _onnxruntime, "openvino": _openvino}


if __name__ == "__main__":
    main(sys.argv[1:])
