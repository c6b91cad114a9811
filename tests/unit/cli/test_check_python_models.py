"""`stoker check` of models written in Python: which values come from their code, and what is wrong with a file."""

from pathlib import Path

import pytest

BATCHED = """
from stoker.models import Array, batched, float32

@batched(max=8, delay_ms=2)
def predict(x: Array["n", 2, float32]) -> Array["n", 2, float32]:
    return x
"""
DECOUPLED = """
from collections.abc import Iterator

def predict(prompt: str) -> Iterator[str]:
    yield prompt
"""


def written(root: Path, source: str, config: str = "") -> str:
    folder = root / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(source)
    if config:
        (root / "m" / "config.pbtxt").write_text(config)
    return str(root)


def rows(out: str) -> list[list[str]]:
    """Source, field and value of each row of the table."""
    return [line.split(maxsplit=2) for line in out.splitlines() if line.startswith(("inferred", "written", "default"))]


@pytest.mark.slow
def test_values_of_annotations_are_inferred_from_the_code(stoker, tmp_path):
    ran = stoker("check", written(tmp_path, BATCHED))
    assert ran.code == 0, ran.out
    assert {field: (source, value) for source, field, value in rows(ran.out)}.items() >= {
        "max_batch_size": ("inferred", "8, from the model's code"),
        "input[0]": ("inferred", "'x' TYPE_FP32 [2], from the model's code"),
        "output[0]": ("inferred", "'output' TYPE_FP32 [2], from the model's code"),
        "dynamic_batching": (
            "inferred",
            "preferred size 8 (max_batch_size, as none is written), delay 2000 us, from the model's code",
        ),
        "instance_group": ("default", "one KIND_CPU instance without an assigned device"),
    }.items()


@pytest.mark.slow
def test_values_of_the_configuration_are_written(stoker, tmp_path):
    ran = stoker("check", written(tmp_path, BATCHED, "max_batch_size: 4 dynamic_batching { }"))
    assert ran.code == 0, ran.out
    found = {field: (source, value) for source, field, value in rows(ran.out)}
    assert found["max_batch_size"] == ("written", "4")
    assert found["dynamic_batching"][0] == "written"


@pytest.mark.slow
def test_decoupled_model_is_shown_as_such(stoker, tmp_path):
    ran = stoker("check", written(tmp_path, DECOUPLED))
    assert ran.code == 0, ran.out
    assert ["inferred", "max_batch_size", "0, from the model's code: tensors have no batch dimension"] in rows(ran.out)
    policy = "decoupled: any number of responses to a request, from the model's code"
    assert ["inferred", "model_transaction_policy", policy] in rows(ran.out)


@pytest.mark.slow
def test_syntax_error_is_printed_once(stoker, tmp_path):
    ran = stoker("check", written(tmp_path, "def predict(x: float) -> float\n    return x\n"))
    assert ran.code == 1
    assert ran.out.count("expected ':'") == 1
    assert "error: version 1: model.py:1: syntax error: expected ':'" in ran.out
