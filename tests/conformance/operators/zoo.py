"""Networks that exporters wrote."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from tests.conformance.operators.case import Case, NoReference, reference_outputs
from tests.fakes.graphs import random_feeds

_EXPORTERS = Path(__file__).with_name("exporters.py")


def exported(python: str, folder: Path) -> list[str]:
    """Writes networks into `folder` with the exporters of the interpreter `python`; returns a line for each that is missing."""
    done = subprocess.run([python, str(_EXPORTERS), str(folder)], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if ": " in line]
    if done.returncode:
        lines.append(f"{python} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return lines


def zoo_models(python: str, folder: Path | None) -> tuple[list[Case], list[str]]:
    """Returns the models in `folder`, or those that `python` exports where there is none, and what is missing.

    Inputs are in a file beside the model (`NAME.npz`), else random.
    """
    if folder is not None:
        return list(_cases(folder)), []
    with tempfile.TemporaryDirectory() as made:
        missing = exported(python, Path(made))
        return list(_cases(Path(made))), missing


def _cases(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)
        arrays = path.with_suffix(".npz")
        feeds = dict(np.load(arrays)) if arrays.exists() else random_feeds(model)
        try:
            expected = reference_outputs(model, feeds)
        except NoReference:
            continue
        yield Case(path.stem, "zoo", path.stem.rpartition("_")[0] or path.stem, model, feeds, expected)
