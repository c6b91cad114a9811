"""The compiled sample model: equal to its script's output, and as accurate as its source model."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime as ort
import pytest

from stoker.backends.api.batch import BatchItem, BatchProcessor
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import ServingError
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import signature
from tests.fakes.ipu_backend import Bench

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "model_repos"
DIGITS = signature({"image": (DataType.FP32, (8, 8))}, {"scores": (DataType.FP32, (10,))}, 32)
#: The accuracy may differ by half a percentage point.
ACCURACY_TOLERANCE = 0.005


def compile_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_ipu", ROOT / "examples/digits/compile_ipu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_files_equal_the_output_of_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = compile_script().build(SAMPLES / "digits", tmp_path)
    committed = SAMPLES / "digits_ipu"
    names = sorted(path.relative_to(built) for path in built.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(committed) for path in committed.rglob("*") if path.is_file())
    stale = [str(name) for name in names if (built / name).read_bytes() != (committed / name).read_bytes()]
    assert stale == [], "run 'make samples' and commit what it writes"


def test_compiled_digits_are_as_accurate_as_the_source_model(bench: Bench) -> None:
    with np.load(ROOT / "examples/digits/heldout.npz") as heldout:
        images, truth = heldout["images"].astype(np.float32), heldout["digits"]
    session = ort.InferenceSession(str(SAMPLES / "digits/1/model.onnx"), providers=["CPUExecutionProvider"])
    expected = session.run(["scores"], {"image": images})[0]
    instance = bench.load((SAMPLES / "digits_ipu/1/executable.popef").read_bytes(), DIGITS)
    unit = BatchProcessor(instance, DIGITS, SystemClock())
    found: list[np.ndarray] = []
    for at in range(0, len(images), 32):
        part = images[at : at + 32]
        [outcome] = unit.process([BatchItem({"image": part}, len(part), ("scores",))]).outcomes
        assert not isinstance(outcome, ServingError), outcome
        found.append(outcome["scores"])
    scores = np.concatenate(found)
    assert scores.dtype == np.float32
    right, right_in_source = (float((each.argmax(axis=1) == truth).mean()) for each in (scores, expected))
    assert abs(right - right_in_source) <= ACCURACY_TOLERANCE
    np.testing.assert_allclose(scores, expected, atol=0.02)


def test_compiled_digits_compute_in_fp16(bench: Bench) -> None:
    facts = bench.facts((SAMPLES / "digits_ipu/1/executable.popef").read_bytes(), DIGITS)
    assert facts.inputs is not None
    assert [(tensor.datatype, tensor.shape) for tensor in facts.inputs] == [(DataType.FP16, (32, 8, 8))]
    assert "precision fp16" in facts.notes[0]
