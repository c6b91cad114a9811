"""Mutated configurations are read or refused within a bound of CPU time, with errors short enough for a response."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.server.config.pbtxt import parse_config_json
from stoker.server.config.report import MAX_FIELD_LENGTH, ConfigError, Report

FUZZER = Path(__file__).parents[2] / "fuzz" / "fuzz_config.py"


@pytest.mark.slow
def test_mutated_configurations_parse_or_raise_a_config_error() -> None:
    # In a process of its own: the kernel ends it where a case takes more CPU time than its bound.
    done = subprocess.run([sys.executable, FUZZER, "--cases=500"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("500 cases, ")


@pytest.mark.parametrize(
    "name", ["max-batch-size!", "name:", "max_batch_size ", "input[0].na[", "", ".", "a.", '["', "é", "\u2028", "[-1]", "\\"]
)
def test_unknown_field_of_any_name_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config_json(json.dumps({name: 4}), model_name="m")
    (problem,) = caught.value.problems
    assert (problem.field, problem.line) == (name, None)
    assert problem.message.startswith("unknown field")


def test_name_that_is_not_utf8_is_refused_with_a_printable_text() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config_json('{"a\\ud800": 1, "input": [{"data_type": "TYPE_\\ud800"}]}', model_name="m")
    assert [problem.field for problem in caught.value.problems] == ["a\\ud800", "input[0].data_type"]
    assert str(caught.value).encode()


def test_long_name_is_truncated_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config_json(f'{{"{"x" * 100_000}": 1}}', model_name="m")
    assert caught.value.problems[0].field == "x" * (MAX_FIELD_LENGTH - 3) + "..."


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("input[1].dims", 3),
        ("input[1].dims[7]", 3),
        ("input[1].reshape.shape", 2),
        ('parameters["a.b[0]"].value', 4),
        ('parameters["a.b[0]"]!', 4),
        ("input[1].no such[", 2),
        ("priority[-1].x", 5),
        ("other", 1),
        ("!", 1),
        ("", 1),
    ],
)
def test_line_is_that_of_the_nearest_enclosing_field(path: str, line: int) -> None:
    lines = {"input": 1, "input[1]": 2, "input[1].dims": 3, 'parameters["a.b[0]"]': 4, "priority[-1]": 5}
    assert Report("m", lines, first_line=1).line_of(path) == line
