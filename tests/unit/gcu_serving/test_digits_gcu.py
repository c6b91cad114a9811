"""The compiled sample model: equal to its script's output, and as accurate as its source model."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime as ort
import pytest

from stoker.backends.api.batch import BatchItem, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import ServingError
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import signature
from tests.fakes.gcu_backend import CardBench

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "model_repos"
DIGITS = signature({"image": (DataType.FP32, (8, 8))}, {"scores": (DataType.FP32, (10,))}, 32)


def compile_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_gcu", ROOT / "examples/digits/compile_gcu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_files_equal_the_output_of_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = compile_script().build(SAMPLES / "digits", tmp_path)
    committed = SAMPLES / "digits_gcu"
    names = sorted(path.relative_to(built) for path in built.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(committed) for path in committed.rglob("*") if path.is_file())
    stale = [str(name) for name in names if (built / name).read_bytes() != (committed / name).read_bytes()]
    assert stale == [], "run 'make samples' and commit what it writes"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 7, 32])
def test_compiled_digits_are_as_accurate_as_the_source_model(bench: CardBench, rows: int) -> None:
    with np.load(ROOT / "examples/digits/heldout.npz") as heldout:
        images, truth = heldout["images"].astype(np.float32), heldout["digits"]
    session = ort.InferenceSession(str(SAMPLES / "digits/1/model.onnx"), providers=["CPUExecutionProvider"])
    expected = session.run(["scores"], {"image": images})[0]
    instance = bench.load((SAMPLES / "digits_gcu/1/model.exec").read_bytes(), DIGITS)
    unit = processor_for(instance, DIGITS, SystemClock())
    found: list[np.ndarray] = []
    for at in range(0, len(images), rows):
        part = images[at : at + rows]
        [outcome] = unit.process([BatchItem({"image": part}, len(part), ("scores",))]).outcomes
        assert not isinstance(outcome, ServingError), outcome
        found.append(outcome["scores"])
    scores = np.concatenate(found)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert (scores.argmax(axis=1) == truth).mean() == (expected.argmax(axis=1) == truth).mean()
