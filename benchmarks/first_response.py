"""Seconds from a model file to the first correct response, with the commands of docs/import.md.

    python -m benchmarks.first_response [--python FRAMEWORK=INTERPRETER ...] [--runs N]

For each framework whose interpreter has it: trains a small model, then times `stoker add`, the start of `stoker serve` until it is ready,
and one request, whose outputs are compared with the source's. Prints the fastest run of each as a row of a Markdown table.
"""

import argparse
import json
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_DATA = """
import json
import numpy as np
X = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
row = X[:1]
def expect(values): json.dump({"row": row.tolist(), "expected": np.asarray(values).tolist()}, open("row.json", "w"))
"""


@dataclass(frozen=True)
class Case:
    """A framework: the code that writes the model file and the expected outputs, and the options of `stoker add`."""

    file: str
    code: str
    options: tuple[str, ...] = ()


CASES = {
    "scikit-learn": Case(
        "m.joblib",
        "import joblib\nfrom sklearn.ensemble import RandomForestClassifier\nm = RandomForestClassifier(100, random_state=0).fit(X, y)\n"
        "joblib.dump(m, 'm.joblib')\nexpect(m.predict_proba(row))",
        ("--trust-pickle",),
    ),
    "XGBoost": Case(
        "m.json",
        "import xgboost\nm = xgboost.XGBClassifier(n_estimators=100).fit(X, y)\nm.save_model('m.json')\nexpect(m.predict_proba(row))",
    ),
    "LightGBM": Case(
        "m.txt",
        "import lightgbm\nm = lightgbm.LGBMClassifier(n_estimators=100, verbose=-1).fit(X, y)\nm.booster_.save_model('m.txt')\n"
        "expect(m.predict_proba(row))",
    ),
    "CatBoost": Case(
        "m.cbm",
        "import catboost\nm = catboost.CatBoostClassifier(iterations=100, verbose=0).fit(X, y)\nm.save_model('m.cbm')\n"
        "expect(m.predict_proba(row))",
    ),
    "PyTorch (.pt2)": Case(
        "m.pt2",
        "import torch\nm = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))\n"
        "rows = {0: torch.export.Dim('rows')}\n"
        "torch.export.save(torch.export.export(m, (torch.zeros(2, 8),), dynamic_shapes=({0: rows[0]},)), 'm.pt2')\n"
        "expect(m(torch.from_numpy(row)).detach().numpy())",
    ),
    "PyTorch (TorchScript)": Case(
        "m.pt",
        "import torch\nm = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))\n"
        "torch.jit.script(m).save('m.pt')\nexpect(m(torch.from_numpy(row)).detach().numpy())",
        ("--input=x=8",),
    ),
    "TensorFlow (SavedModel)": Case(
        "m",
        "import keras\nm = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, 'relu'), keras.layers.Dense(3)])\n"
        "m.export('m', verbose=False)\nexpect(m(row).numpy())",
    ),
    "Keras (.keras)": Case(
        "m.keras",
        "import keras\nm = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, 'relu'), keras.layers.Dense(3)])\n"
        "m.save('m.keras')\nexpect(m(row).numpy())",
    ),
}
STOKER = (sys.executable, "-m", "stoker.cli.main")


def cpu_s() -> float:
    """CPU time of all child processes that have ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Run:
    """Seconds, and seconds of CPU time: of `stoker add`, and of the server from its start until the first response."""

    add_s: float
    add_cpu_s: float
    serve_s: float
    serve_cpu_s: float


def one_run(case: Case, python: str, made: Path) -> Run:
    """Adds the file, starts the server, and sends one request, whose outputs are right."""
    with tempfile.TemporaryDirectory(prefix="first-response-") as name:
        folder = Path(name)
        words = [*STOKER, "add", str(made / case.file), "--name=m", f"--model-repository={folder}/models", *case.options]
        words += [f"--python={python}"] if python != sys.executable else []
        since, since_cpu = time.monotonic(), cpu_s()
        done = subprocess.run([*words, "--json"], check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        added, added_cpu = time.monotonic(), cpu_s()
        ready = folder / "ready"
        flags = [f"--model-repository={folder}/models", "--grpc-port=0", "--http-port=0", f"--ready-file={ready}"]
        server = subprocess.Popen([*STOKER, "serve", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not ready.exists():
                if server.poll() is not None or time.monotonic() - added > 60:
                    raise RuntimeError("the server is not ready")
                time.sleep(0.01)
            (tensor,) = json.loads(shlex.split(json.loads(done.stdout)["next"][-1])[-1])["inputs"]
            check(json.loads(ready.read_text())["http_port"], tensor["name"], json.loads((made / "row.json").read_text()))
            served = time.monotonic()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
        # The CPU time of the server contains its shutdown.
        return Run(added - since, added_cpu - since_cpu, served - added, cpu_s() - added_cpu)


def check(port: int, name: str, row: dict[str, Any]) -> None:
    """Sends the row and compares one output with the expected one."""
    url = f"http://127.0.0.1:{port}/v2/models/m"
    values = np.array(row["row"])
    body = {"inputs": [{"name": name, "shape": list(values.shape), "datatype": "FP32", "data": values.ravel().tolist()}]}
    with urllib.request.urlopen(f"{url}/infer", data=json.dumps(body).encode()) as response:  # noqa: S310 - this server
        outputs = json.load(response)["outputs"]
    expected = np.array(row["expected"]).ravel()
    found = next(output["data"] for output in outputs if len(output["data"]) == expected.size)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="FRAMEWORK=INTERPRETER", help="by the beginning of a name")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    pythons = dict(text.partition("=")[::2] for text in options.python)
    print("| file of | `stoker add`, s (CPU) | start until first response, s (CPU) | together, s (CPU) |")
    print("|---|---|---|---|")
    for title, case in CASES.items():
        python = next((path for start, path in pythons.items() if title.startswith(start)), sys.executable)
        with tempfile.TemporaryDirectory(prefix="first-response-") as name:
            made = subprocess.run([python, "-c", _DATA + case.code], cwd=name, capture_output=True, text=True, check=False)
            if made.returncode:
                print(f"| {title} | not measured: {(made.stderr.strip().splitlines() or ['failed'])[-1]} | | |")
                continue
            runs = [one_run(case, python, Path(name)) for _ in range(options.runs)]
        run = min(runs, key=lambda each: each.add_s + each.serve_s)
        cells = [(run.add_s, run.add_cpu_s), (run.serve_s, run.serve_cpu_s), (run.add_s + run.serve_s, run.add_cpu_s + run.serve_cpu_s)]
        print(f"| {title} | {' | '.join(f'{wall:.1f} ({cpu:.1f})' for wall, cpu in cells)} |", flush=True)


if __name__ == "__main__":
    main()
