"""`scripts/conformance`: compiles, loads and runs all cases in worker processes."""

import argparse
import contextlib
import json
import logging
import multiprocessing
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stoker.compiler.options import OPERATOR_MODES, CompilerOptions
from tests.conformance.operators.case import Case
from tests.conformance.operators.node_tests import node_tests
from tests.conformance.operators.opset_models import opset_models, uncovered
from tests.conformance.operators.report import print_report
from tests.conformance.operators.running import DEFECTS, Outcome, Result, outcome
from tests.conformance.operators.zoo import zoo_models

PARTS = ("nodes", "opsets", "zoo")
TARGETS = ("ipu", "gcu", "cpu")
FAILED = 1
#: Tasks that wait in the pool: a process that dies takes them along, and they run again.
_CHUNK = 64

#: Set before the worker processes are forked, so that no model is sent to them.
_cases: Sequence[Case] = ()
_operators = CompilerOptions().operators


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 1 if a result is a defect, or nothing ran."""
    global _operators
    given = _parser().parse_args(arguments)
    _operators = given.operators
    warnings.simplefilter("ignore")  # ONNX's tests divide by zero on purpose
    logging.disable(logging.CRITICAL)
    console = Console(stderr=True)
    with console.status("collecting models"):
        cases = [
            case
            for case in _collected(given.part or PARTS, given, console)
            if re.search(given.filter, f"{case.name} {case.operator}") and given.opset in (None, case.opset)
        ]
    if not cases:
        console.print("there is no such case", markup=False)
        return FAILED
    tasks = [(at, target) for at in range(len(cases)) for target in given.target or TARGETS]
    found = []
    with contextlib.ExitStack() as files:
        lines = None if given.json is None else files.enter_context(given.json.open("w", encoding="utf-8", buffering=1))
        for each in _run(cases, tasks, given.jobs, console):
            found.append(each)
            if lines is not None:
                lines.write(json.dumps(asdict(each)) + "\n")
    print_report(found, Console(width=None if sys.stdout.isatty() else 160), is_verbose=given.verbose)
    return FAILED if any(each.result in DEFECTS for each in found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/conformance",
        description="Compiles ONNX's node tests, models of each operator at each opset, and exported networks; compares what is served "
        "with what is expected. Exit code 1: a result is wrong, an error is internal, or a compiled model does not load.",
    )
    parser.add_argument("--target", action="append", choices=TARGETS, help="Only for this target; may be repeated.")
    parser.add_argument("--part", action="append", choices=PARTS, help="Only this part; may be repeated.")
    parser.add_argument("--opset", type=int, help="Only models of this opset.")
    parser.add_argument("--filter", default="", help="Only cases whose name and operator match this regular expression.")
    parser.add_argument(
        "--operators", choices=OPERATOR_MODES, default=_operators, help=f"The option of stoker compile, for ipu and gcu ({_operators})."
    )
    parser.add_argument("--json", type=Path, help="Also write the outcomes into this file, one JSON object per line.")
    parser.add_argument("--zoo", type=Path, help="A folder of ONNX files for part zoo, instead of exporting networks.")
    parser.add_argument(
        "--exporters",
        action="append",
        help="An interpreter with PyTorch, skl2onnx, tf2onnx or paddle2onnx (this one); may be repeated, since few install together.",
    )
    parser.add_argument("--jobs", type=int, default=1, help="Worker processes (1).")
    parser.add_argument("--verbose", action="store_true", help="List all refused cases of each reason.")
    return parser


def _collected(parts: Sequence[str], given: argparse.Namespace, console: Console) -> Iterator[Case]:
    if "nodes" in parts:
        yield from node_tests()
    if "opsets" in parts:
        models = opset_models()
        for name, opset in uncovered(models):
            console.print(f"opsets: no model of {name} {opset}: nothing runs one", markup=False)
        yield from models
    if "zoo" in parts:
        cases, missing = zoo_models(given.exporters or [sys.executable], given.zoo)
        for line in missing:
            console.print(f"zoo: {line}", markup=False)
        yield from cases


def _run(cases: Sequence[Case], tasks: Sequence[tuple[int, str]], jobs: int, console: Console) -> Iterator[Outcome]:
    global _cases
    _cases = cases
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("compiling", total=len(tasks))
        for start in range(0, len(tasks), _CHUNK):
            for each in _run_chunk(tasks[start : start + _CHUNK], jobs):
                progress.advance(bar)
                yield each


_pools: dict[int, ProcessPoolExecutor] = {}


def _run_chunk(tasks: Sequence[tuple[int, str]], jobs: int) -> Iterator[Outcome]:
    """Runs `tasks` together; those that a dying process takes along run again one by one, so that it is known which one kills it."""
    left = []
    pool = _pool(jobs)
    futures: dict[Future[Outcome], tuple[int, str]] = {pool.submit(_task, *task): task for task in tasks}
    for future in as_completed(futures):
        try:
            yield future.result()
        except BrokenProcessPool:
            left.append(futures[future])
    for task in left:
        with contextlib.suppress(KeyError):
            _pools.pop(jobs).shutdown()
        try:
            yield _pool(jobs).submit(_task, *task).result()
        except BrokenProcessPool:
            case = _cases[task[0]]
            yield Outcome(case.part, case.name, case.operator, case.opset, task[1], Result.INTERNAL, "the process died")


def _pool(jobs: int) -> ProcessPoolExecutor:
    if jobs not in _pools:
        _pools[jobs] = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"))
    return _pools[jobs]


def _task(at: int, target: str) -> Outcome:
    return outcome(_cases[at], target, _operators)
