"""`stoker add` with a fake converter: consent, comparison, the written repository, and what a failure leaves behind."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.registry import BackendRegistry
from stoker.cli.add.command import read_input
from stoker.cli.output import CommandFailed
from stoker.server.lifecycle.check import Loading, check_repository
from tests.fakes import onnx_models
from tests.fakes.classifiers import classifier
from tests.fakes.converter import fake_interpreter

ROOT = Path(__file__).resolve().parents[3]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def add(stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Adds a pickle by the fake interpreter in the given mode."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "iris.pkl").write_bytes(b"no pickle at all")

    def run(*words: str, mode: str = "right"):
        python = fake_interpreter(tmp_path / "env", classifier(), mode)
        return stoker("add", "iris.pkl", f"--python={python}", *words)

    return run


def test_converted_model_is_written_with_its_configuration_and_labels_and_loads(add, tmp_path: Path) -> None:
    ran = add("--trust-pickle", "--model-repository=repo", "--name=flowers")
    assert ran.code == 0
    assert "flowers: version 1 is in repo/flowers" in ran.out
    assert "fakelearn 1.0, Tree, converted to ONNX by fake2onnx 2.0" in ran.out
    assert "note: a note" in ran.out
    model = tmp_path / "repo" / "flowers"
    assert sorted(path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()) == [
        "1/model.onnx",
        "config.pbtxt",
        "labels.txt",
    ]
    assert (model / "labels.txt").read_text() == "cat\ndog\nfish\n"
    text = (model / "config.pbtxt").read_text()
    assert "max_batch_size: 256\ndynamic_batching { }" in text
    assert 'key: "split_oversized_requests" value { string_value: "true" }' in text
    assert 'name: "probabilities" data_type: TYPE_FP32 dims: [3] label_filename: "labels.txt"' in text
    assert names(tmp_path / "repo") == ["flowers"]
    report = check_repository([tmp_path / "repo"], BackendRegistry(), loading=Loading.NONE)
    assert report.is_good
    assert [finding.text for finding in report.models[0].versions[0].findings if finding.kind.value == "warning"] == []


def test_printed_commands_hold_a_row_that_the_model_takes(add) -> None:
    lines = [line.strip() for line in add("--trust-pickle").out.splitlines()]
    assert lines[-3:] == [
        "stoker serve --model-repository=models",
        "stoker infer iris -i 'x=[[0.0, 0.25]]'",
        "curl -s localhost:8501/v2/models/iris/infer -d "
        '\'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0.0, 0.25]}]}\'',
    ]


def test_json_has_the_differences_and_standard_error_is_empty(add) -> None:
    ran = add("--trust-pickle", "--json")
    facts = json.loads(ran.out)
    assert (facts["name"], facts["version"], facts["backend"], facts["max_batch_size"]) == ("iris", 1, "onnxruntime", 256)
    label, probabilities = facts["outputs"]
    assert label == {"name": "label", "largest_difference": None, "different_labels": 0, "rows": 12}
    assert probabilities["largest_difference"] < 1e-6
    assert ran.err == ""


def test_pickle_without_consent_starts_no_process(add, tmp_path: Path) -> None:
    ran = add()
    assert ran.code == 2
    assert "iris.pkl is a pickle: loading it runs code that the file contains" in ran.err
    assert "--trust-pickle" in ran.err
    assert not (tmp_path / "env" / "request.json").exists()
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_consent_is_asked_on_a_terminal(add, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    asked: list[str] = []

    def confirm(text: str, **options: object) -> bool:
        asked.append(text)
        return answer == "y"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", confirm)
    assert add().code == code
    assert [text[-8:] for text in asked] == ["Load it?"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "words", "text"),
    [
        (
            "wrong",
            (),
            "the converted model does not compute what its source does: output 'probabilities' differs from the source's by 0.01",
        ),
        ("crash", (), "the process of the conversion ended with signal 9: out of luck"),
        ("hang", ("--timeout=1",), "the conversion takes longer than 1 s (--timeout)"),
        ("failure no such thing", (), "no such thing"),
        ("missing skl2onnx", (), "needs the package 'skl2onnx' in the environment of --python"),
        ("missing mymodels", (), "the model needs the Python module 'mymodels'"),
    ],
)
def test_failure_leaves_the_repository_as_it_was(add, tmp_path: Path, mode: str, words: tuple[str, ...], text: str) -> None:
    ran = add("--trust-pickle", *words, mode=mode)
    assert ran.code == 1
    assert text in ran.err
    assert names(tmp_path / "models") == []


@pytest.mark.slow
def test_samples_that_would_be_unpickled_are_rejected(add, tmp_path: Path) -> None:
    ran = add("--trust-pickle", mode="objects")
    assert ran.code == 1
    assert names(tmp_path / "models") == []


@pytest.mark.slow
def test_larger_tolerance_accepts_the_difference(add) -> None:
    assert add("--trust-pickle", "--tolerance=0.02", mode="wrong").code == 0


def test_missing_package_names_the_extra(tmp_path: Path, stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.cli.add.formats import XGBOOST
    from stoker.cli.add.importing import missing_text, packages_of

    assert "pip install 'stoker[import-xgboost]'" in missing_text("onnxmltools", XGBOOST, None)
    assert "pip install 'stoker[import-sklearn]'" in missing_text("skl2onnx", XGBOOST, None)
    assert packages_of("no-such-extra") == "'stoker[no-such-extra]'"


@pytest.mark.slow
def test_existing_model_needs_new_version_and_keeps_its_configuration(add, tmp_path: Path) -> None:
    assert add("--trust-pickle").code == 0
    config = tmp_path / "models" / "iris" / "config.pbtxt"
    config.write_text(config.read_text().replace("256", "16"))
    ran = add("--trust-pickle")
    assert ran.code == 2
    assert "models/iris exists: --new-version adds a version" in ran.err
    ran = add("--trust-pickle", "--new-version")
    assert ran.code == 0
    assert "iris: version 2 is in models/iris" in ran.out
    assert "max_batch_size 16" in ran.out
    assert "max_batch_size: 16" in config.read_text()
    assert names(tmp_path / "models" / "iris") == ["1", "2", "config.pbtxt", "labels.txt"]


@pytest.mark.slow
def test_new_version_that_contradicts_the_configuration_is_rejected(add, tmp_path: Path) -> None:
    assert add("--trust-pickle").code == 0
    config = tmp_path / "models" / "iris" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [2]", "dims: [7]"))
    ran = add("--trust-pickle", "--new-version")
    assert ran.code == 1
    assert "the model file has [2]" in ran.err
    assert names(tmp_path / "models" / "iris") == ["1", "config.pbtxt", "labels.txt"]


def test_onnx_file_is_copied_with_its_weights_and_not_converted(stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = onnx_models.sum_and_difference().SerializeToString()
    Path("my net.onnx").write_bytes(content)
    Path("my net.onnx.data").write_bytes(b"weights")
    ran = stoker("add", "my net.onnx", "--python=/nowhere/python", "--max-batch-size=12")
    assert ran.code == 0
    assert (tmp_path / "models" / "my_net" / "1" / "model.onnx").read_bytes() == content
    assert (tmp_path / "models" / "my_net" / "1" / "my net.onnx.data").exists()
    assert "max_batch_size: 12" in (tmp_path / "models" / "my_net" / "config.pbtxt").read_text()


def test_model_without_an_open_batch_is_not_batched(stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fixed.onnx").write_bytes(onnx_models.sum_and_difference((4, 2)).SerializeToString())
    ran = stoker("add", "fixed.onnx")
    assert ran.code == 0
    assert "not batched" in ran.out
    assert "max_batch_size: 0\ninput" in (tmp_path / "models" / "fixed" / "config.pbtxt").read_text()
    assert stoker("add", "fixed.onnx", "--name=other", "--max-batch-size=4").code == 2


def test_broken_onnx_file_is_rejected(stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(b"no model")
    ran = stoker("add", "net.onnx")
    assert (ran.code, names(Path("models"))) == (1, [])
    assert "not a readable ONNX file" in ran.err
    assert stoker("add", "net.onnx", "--name=../x").code == 2
    assert stoker("add", "net.onnx", "--sample=none.npy").code == 2


def test_long_row_is_written_beside_the_model(stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(onnx_models.identity(shape=("n", 8, 8)).SerializeToString())
    ran = stoker("add", "net.onnx")
    assert ran.code == 0, ran.err
    assert np.load("models/net/sample_x.npy").shape == (1, 8, 8)
    assert "stoker infer net -i x=models/net/sample_x.npy" in ran.out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image=3,224,224", ("image", ("float32", (3, 224, 224)))),
        ("ids:int64=-1", ("ids", ("int64", (-1,)))),
        ("x:FP16=", ("x", ("float16", ()))),
    ],
)
def test_input_is_read(text: str, expected: object) -> None:
    assert read_input(text) == expected


@pytest.mark.parametrize("text", ["image", "image:float33=1", "image=a,b", "=1", "image=1,,2"])
def test_malformed_input_is_rejected(text: str) -> None:
    with pytest.raises(CommandFailed, match="expected NAME=D,D or NAME:TYPE=D,D"):
        read_input(text)


@pytest.mark.slow
def test_child_needs_numpy_and_its_own_package_only(tmp_path: Path) -> None:
    """It may run in the environment of another project."""
    code = (
        "import sys, types; m = types.ModuleType('stoker'); m.__path__ = [sys.argv[1]]; sys.modules['stoker'] = m; "
        "import stoker.cli.add.child.main, stoker.cli.add.child.samples, stoker.cli.add.child.job; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'onnx', 'onnxruntime', 'typer', 'rich', 'pydantic'}), "
        "[name for name in sys.modules if name.startswith('stoker.') and '.add' not in name])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ROOT / "cli" / "stoker")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] ['stoker.cli']"


@pytest.mark.slow
def test_model_in_python_is_copied_and_loaded_in_another_process(stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "plus one"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "number.txt").write_text("1")
    (folder / "model.py").write_text(
        "import os\nfrom pathlib import Path\nfrom stoker.models import Array, batched, float32\n"
        "NUMBER = float(Path(__file__).with_name('number.txt').read_text())\n\n\n"
        "@batched(max=8)\ndef predict(x: Array['n', float32]) -> Array['n', float32]:\n    return x + NUMBER\n"
    )
    ran = stoker("add", "plus one")
    assert ran.code == 0, ran.err
    assert names(tmp_path / "models" / "plus_one" / "1") == ["model.py", "number.txt"]
    (folder / "model.py").write_text("def predict(x): return x\n")
    ran = stoker("add", "plus one", "--new-version")
    assert ran.code == 1
    assert names(tmp_path / "models" / "plus_one") == ["1"]
