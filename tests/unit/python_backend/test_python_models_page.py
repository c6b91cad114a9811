"""The examples of docs/python_models.md run as they are written."""

import re
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.errors import ServingError
from stoker.backends.api.rescheduling import Rescheduled
from stoker.backends.python.describe import describe
from tests.fakes.python_models import Item, Mark, Sink, load, run, signature

PAGE = (Path(__file__).parents[3] / "docs" / "python_models.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
#: Without those of a client and of Triton's form.
EXAMPLES = [text for text in BLOCKS if "stoker_client" not in text and "triton_python_backend_utils" not in text]
CONFIGURATION = re.search(r"```\n(parameters .*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_of_the_page_is_a_model(number: int, tmp_path: Path):
    (tmp_path / "model.py").write_text(EXAMPLES[number])
    np.save(tmp_path / "weights.npy", np.zeros((4, 2), np.float32))
    payload = {"folder": str(tmp_path), "filename": "model.py", "model_name": "m", "version": 1, "config": {"name": "m"}}
    try:
        config = describe(payload)["config"]
    except ServingError as error:
        pytest.fail(error.message)
    assert config["input"]
    assert config["output"]


def test_example_of_iterative_sequences_counts_down(tmp_path: Path):
    (source,) = (text for text in BLOCKS if "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in text)
    served = signature({"IN": ("INT32", [1])}, {"OUT": ("INT32", [1])}, 4, is_decoupled=True, is_iterative=True)
    instance, sinks = load(tmp_path, source, served), [Sink(), Sink()]
    inputs = [{"IN": np.array([[count]], np.int32)} for count in (3, 3)]
    kinds = []
    for step in range(3):
        items = [
            Item(
                inputs[each],
                ("OUT",),
                responses=sinks[each],
                sequence=Mark(each + 1, is_start=not step),
                is_cancelled=(each, step) == (1, 1),
            )
            for each in ((0, 1) if step < 2 else (0,))
        ]
        kinds.append([type(outcome) for outcome in run(instance, served, items)])
    assert kinds == [[Rescheduled, Rescheduled], [Rescheduled, dict], [dict]]
    assert [[response["OUT"].item() for response in sink.taken] for sink in sinks] == [[2, 1, 0], [2]]


def test_page_has_examples_of_every_form():
    text = "".join(EXAMPLES)
    assert len(EXAMPLES) >= 4
    for form in ("@batched(max=32)", "NamedTuple", "class Model", "yield", "BadRequest"):
        assert form in text


def test_parameter_of_the_page_is_the_one_that_the_command_writes():
    from stoker.cli import env

    assert CONFIGURATION is not None
    assert env.PARAMETER in CONFIGURATION[1]
    assert env._WRITTEN in CONFIGURATION[1]
