"""Seconds from a model file to the first correct response, with the commands of docs/import.md.

    python -m benchmarks.first_response [--python FRAMEWORK=INTERPRETER ...] [--runs N]

For each framework whose interpreter has it: trains a small model, then times `stoker add`, the start of `stoker serve` until it is ready,
and one request, whose outputs are compared with the source's. Prints the medians as rows of a Markdown table.
"""

import argparse
import json
import signal
import statistics
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


def one_run(case: Case, python: str, made: Path) -> tuple[float, float, float]:
    """Seconds of `stoker add`, of the start, and of the first request, whose outputs are right."""
    with tempfile.TemporaryDirectory(prefix="first-response-") as name:
        folder = Path(name)
        since = time.monotonic()
        words = [*STOKER, "add", str(made / case.file), "--name=m", f"--model-repository={folder}/models", *case.options]
        words += [f"--python={python}"] if python != sys.executable else []
        subprocess.run([*words, "--json"], check=True, capture_output=True)
        added = time.monotonic()
        ready = folder / "ready"
        flags = [f"--model-repository={folder}/models", "--grpc-port=0", "--http-port=0", f"--ready-file={ready}"]
        server = subprocess.Popen([*STOKER, "serve", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not ready.exists():
                if server.poll() is not None or time.monotonic() - added > 60:
                    raise RuntimeError("the server is not ready")
                time.sleep(0.01)
            started = time.monotonic()
            check(json.loads(ready.read_text())["http_port"], json.loads((made / "row.json").read_text()))
            return added - since, started - added, time.monotonic() - started
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def check(port: int, row: dict[str, Any]) -> None:
    """Sends the row and compares one output with the expected one."""
    url = f"http://127.0.0.1:{port}/v2/models/m"
    with urllib.request.urlopen(url) as response:
        name = json.load(response)["inputs"][0]["name"]
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
    print("| file of | `stoker add`, s | start until ready, s | first response, s | together, s |")
    print("|---|---|---|---|---|")
    for title, case in CASES.items():
        python = next((path for start, path in pythons.items() if title.startswith(start)), sys.executable)
        with tempfile.TemporaryDirectory(prefix="first-response-") as name:
            made = subprocess.run([python, "-c", _DATA + case.code], cwd=name, capture_output=True, text=True, check=False)
            if made.returncode:
                print(f"| {title} | not measured: {(made.stderr.strip().splitlines() or ['failed'])[-1]} | | | |")
                continue
            runs = [one_run(case, python, Path(name)) for _ in range(options.runs)]
        cells = [statistics.median(run[at] for run in runs) for at in range(3)]
        print(
            f"| {title} | {' | '.join(f'{cell:.2f}' for cell in cells)} | {statistics.median(sum(run) for run in runs):.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
