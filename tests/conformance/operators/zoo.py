"""Networks that exporters wrote."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from tests.conformance.operators.case import Case, NoReference, reference_outputs
from tests.fakes.graphs import random_feeds

_EXPORTERS = tuple(Path(__file__).with_name(name) for name in ("exporters.py", "framework_exporters.py"))


def exported(python: str, folder: Path) -> list[str]:
    """Writes networks into `folder` with the exporters of the interpreter `python`; returns a line for each that is missing."""
    lines = []
    for script in _EXPORTERS:
        done = subprocess.run([python, str(script), str(folder)], capture_output=True, text=True, check=False)
        lines += [line for line in done.stdout.splitlines() if re.match(r"\w+: ", line)]  # exporters print there, too
        if done.returncode:
            lines.append(f"{python} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return lines


def zoo_models(interpreters: Sequence[str], folder: Path | None) -> tuple[list[Case], list[str]]:
    """Returns the models in `folder`, or those that `interpreters` export where there is none, and what is missing.

    Inputs are in a file beside the model (`NAME.npz`), else random.
    """
    if folder is not None:
        return _cases(folder)
    with tempfile.TemporaryDirectory() as made:
        missing = [line for python in interpreters for line in exported(python, Path(made))]
        cases, without = _cases(Path(made))
        return cases, [*missing, *without]


def _cases(folder: Path) -> tuple[list[Case], list[str]]:
    """Returns the cases of the models in `folder`, and a line for each model that ONNX Runtime does not run."""
    cases, missing = [], []
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)
        arrays = path.with_suffix(".npz")
        feeds = dict(np.load(arrays)) if arrays.exists() else random_feeds(model)
        try:
            expected = reference_outputs(model, feeds)
        except NoReference as error:
            missing.append(f"{path.stem}: it has no reference: {error}")
            continue
        cases.append(Case(path.stem, "zoo", path.stem.rpartition("_")[0] or path.stem, model, feeds, expected))
    return cases, missing
