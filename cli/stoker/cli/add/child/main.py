"""The entry point: reads a `Job` as JSON from the standard input, converts, and prints one JSON object per line.

Lines: `{"step": TEXT}` while it works; at the end `{"converted": {...}}`, `{"missing": PACKAGE}` or `{"failure": TEXT}`. The samples are
written to `samples.npz`. What frameworks print goes to the standard error.
"""

import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from stoker.cli.add.child.job import Converted, Job, Unusable

#: By the name of a converter, the module whose `convert` it is. A module is imported only if its converter runs.
CONVERTERS = {
    "pickle": "pickles",
    "xgboost": "boosting",
    "lightgbm": "boosting",
    "catboost": "boosting",
    "torchscript": "torch_files",
    "torch_pickle": "torch_files",
    "pt2": "torch_files",
    "saved_model": "tensorflow_files",
    "keras": "tensorflow_files",
    "tflite": "tensorflow_files",
    "frozen_graph": "tensorflow_files",
    "paddle": "paddle_files",
    "hub": "hub",
}
SAMPLES = "samples.npz"


def main() -> int:
    """Runs one job; returns the exit code."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    request = json.loads(sys.stdin.read())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.simplefilter("ignore")
    job = Job(
        source=Path(request["source"]),
        folder=Path(request["folder"]),
        scratch=Path(request["results"]),
        sample=None if request["sample"] is None else Path(request["sample"]),
        inputs={name: (dtype, tuple(dims)) for name, (dtype, dims) in request["inputs"].items()},
        row_counts=request["row_counts"],
        is_trusted=request["is_trusted"],
        step=lambda text: say(step=text),
    )
    try:
        module = importlib.import_module(f"stoker.cli.add.child.{CONVERTERS[request['converter']]}")
        converted: Converted = getattr(module, f"convert_{request['converter']}")(job)
        _save(converted, Path(request["results"]) / SAMPLES)
    except ModuleNotFoundError as error:
        traceback.print_exc()
        say(missing=(error.name or str(error)).partition(".")[0])
        return 1
    except Unusable as error:
        say(failure=str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - a framework may raise anything; it is the reason for the user
        traceback.print_exc()
        say(failure=f"{type(error).__name__}: {error}")
        return 1
    say(
        converted={
            "framework": converted.framework,
            "model": converted.model,
            "converter": converted.converter,
            "labels": {str(at): names for at, names in converted.labels.items()},
            "notes": converted.notes,
            "samples": len(converted.inputs),
        }
    )
    return 0


def _save(converted: Converted, path: Path) -> None:
    arrays: dict[str, Any] = {}
    for at, (inputs, outputs) in enumerate(zip(converted.inputs, converted.outputs)):  # noqa: B905 - Python 3.9
        arrays.update({f"{at}.in.{name}": _plain(array) for name, array in inputs.items()})
        arrays.update({f"{at}.out.{position}": _plain(array) for position, array in enumerate(outputs) if array is not None})
    np.savez(path, **arrays)


def _plain(array: Any) -> Any:
    """An array that a file can hold without pickle: objects become strings."""
    found = np.asarray(array)
    return found.astype(str) if found.dtype == object else found


if __name__ == "__main__":
    sys.exit(main())
