"""`stoker add` with the real frameworks and converters, each where its extra is installed."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

#: How a test makes its model: in a process of its own, as the frameworks warn on import.
SCRIPTS = {
    "scikit-learn": """
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.linear_model import LogisticRegression
import joblib
joblib.dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y), "m.joblib")
""",
    "scikit-learn with names": """
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
import joblib, pandas
frame = pandas.DataFrame({"city": ["a", "b"] * 20, "age": range(40)})
columns = make_column_transformer((OneHotEncoder(), ["city"]), ("passthrough", ["age"]))
joblib.dump(make_pipeline(columns, LinearRegression()).fit(frame, frame["age"] * 2), "m.pkl")
frame.head(5).to_csv("rows.csv", index=False)
""",
    "XGBoost": """
import xgboost
xgboost.XGBClassifier(n_estimators=5).fit(X, number).save_model("m.json")
""",
    "LightGBM": """
import lightgbm
lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(X, number).booster_.save_model("m.txt")
""",
    "CatBoost": """
import catboost
catboost.CatBoostClassifier(iterations=5, verbose=0).fit(X, y).save_model("m.cbm")
""",
    "TorchScript": """
import torch
torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(dim=1))).save("m.pt")
""",
    "exported program": """
import torch
rows = {0: torch.export.Dim("rows")}
torch.export.save(torch.export.export(torch.nn.Linear(4, 3), (torch.zeros(2, 4),), dynamic_shapes=(rows,)), "m.pt2")
""",
    "Keras": """
import keras
keras.Sequential([keras.Input((4,), name="features"), keras.layers.Dense(3)]).save("m.keras")
""",
    "SavedModel": """
import keras
keras.Sequential([keras.Input((4,), name="features"), keras.layers.Dense(3)]).export("m")
""",
    "transformers": """
from transformers import BertConfig, BertForSequenceClassification
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3)
BertForSequenceClassification(config).save_pretrained("m")
""",
}
_DATA = """
import numpy as np
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
number = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
y = np.array(["ant", "bee", "cat"])[number]
"""


@pytest.fixture
def added(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Makes the model of a framework, adds it, and returns what `stoker add --json` prints."""

    def run(framework: str, file: str, *words: str, needs: tuple[str, ...]) -> dict[str, Any]:
        missing = [name for name in needs if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"{', '.join(missing)} not installed")
        made = subprocess.run([sys.executable, "-c", _DATA + SCRIPTS[framework]], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        command = [sys.executable, "-m", "stoker.cli.main", "add", file, "--json", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["m"]
        assert all(
            path.name in ("1", "config.pbtxt", "labels.txt") or path.name.startswith("sample_")
            for path in (tmp_path / "models" / "m").iterdir()
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def largest(facts: dict[str, Any]) -> float:
    return max(each["largest_difference"] for each in facts["outputs"] if each["largest_difference"] is not None)


def test_scikit_learn_classifier(added, tmp_path: Path) -> None:
    facts = added("scikit-learn", "m.joblib", "--trust-pickle", needs=("sklearn", "skl2onnx"))
    assert facts["max_batch_size"] == 256
    assert largest(facts) < 1e-5
    assert (tmp_path / "models" / "m" / "labels.txt").read_text() == "ant\nbee\ncat\n"


def test_scikit_learn_pipeline_with_named_columns_needs_rows_of_a_file(added, tmp_path: Path) -> None:
    facts = added("scikit-learn with names", "m.pkl", "--trust-pickle", "--sample=rows.csv", needs=("sklearn", "skl2onnx", "pandas"))
    assert largest(facts) < 1e-3
    text = (tmp_path / "models" / "m" / "config.pbtxt").read_text()
    assert 'name: "city" data_type: TYPE_STRING' in text
    assert 'name: "age" data_type: TYPE_FP32' in text


@pytest.mark.parametrize(
    ("framework", "file", "needs"),
    [
        ("XGBoost", "m.json", ("xgboost", "onnxmltools", "skl2onnx")),
        ("LightGBM", "m.txt", ("lightgbm", "onnxmltools", "skl2onnx")),
        ("CatBoost", "m.cbm", ("catboost",)),
    ],
)
def test_boosted_trees(added, framework: str, file: str, needs: tuple[str, ...]) -> None:
    facts = added(framework, file, needs=needs)
    assert facts["max_batch_size"] == 256
    assert largest(facts) < 1e-5


def test_torch_script_with_the_dims_of_a_row(added) -> None:
    facts = added("TorchScript", "m.pt", "--input=features=4", needs=("torch", "onnxscript"))
    assert facts["max_batch_size"] == 256
    assert "features=" in facts["next"][1]
    assert largest(facts) < 1e-5


def test_torch_script_with_rows_of_a_file(added, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((5, 4), np.float32))
    assert largest(added("TorchScript", "m.pt", "--sample=rows.npy", needs=("torch", "onnxscript"))) < 1e-5


def test_exported_program(added) -> None:
    assert largest(added("exported program", "m.pt2", needs=("torch", "onnxscript"))) < 1e-5


def test_keras_file(added) -> None:
    assert largest(added("Keras", "m.keras", needs=("keras", "tensorflow", "tf2onnx"))) < 1e-4


def test_saved_model_is_converted_on_demand(added) -> None:
    facts = added("SavedModel", "m", "--convert", needs=("keras", "tensorflow", "tf2onnx"))
    assert facts["backend"] == "onnxruntime"
    assert largest(facts) < 1e-4


def test_saved_model_is_copied_for_openvino(added, tmp_path: Path) -> None:
    facts = added("SavedModel", "m", needs=("keras", "tensorflow", "openvino"))
    assert (facts["backend"], facts["outputs"]) == ("openvino", [])
    assert (tmp_path / "models" / "m" / "1" / "model.savedmodel" / "saved_model.pb").exists()


def test_model_hub_folder(added) -> None:
    facts = added("transformers", "m", needs=("transformers", "optimum", "torch"))
    assert facts["max_batch_size"] == 32
    assert largest(facts) < 1e-4
