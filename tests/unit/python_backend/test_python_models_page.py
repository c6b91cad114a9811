"""The examples of docs/python_models.md run as they are written."""

import re
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.errors import ServingError
from stoker.backends.python.describe import describe

PAGE = (Path(__file__).parents[3] / "docs" / "python_models.md").read_text()
#: Without that of a client.
EXAMPLES = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "stoker_client" not in text]
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
