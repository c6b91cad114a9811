"""How the values of flags are read from a command line and the environment."""

from pathlib import Path
from typing import Any

import pytest

from stoker.server.flags.command import Page, read_flags, spell
from stoker.server.flags.declare import FlagError
from stoker.server.flags.groups import annotations, defaults
from stoker.server.flags.serving import ControlChoice, ModelFlags


def read(*words: str, **variables: str) -> dict[str, Any]:
    values = read_flags(spell(words), variables)
    assert not isinstance(values, Page)
    return values


def test_a_flag_that_is_not_given_has_its_default():
    assert read() == defaults()
    assert set(defaults()) == set(annotations())


def test_a_value_stands_behind_the_flag_or_in_the_next_word_whatever_it_begins_with():
    assert read("--id=a=b")["server_id"] == "a=b"
    assert read("--id", "--b")["server_id"] == "--b"
    assert read("--id=")["server_id"] == read("--id", "")["server_id"] == ""


def test_values_have_the_type_of_their_field():
    values = read("--grpc-port=1", "--settle-secs=0.5", "--log-info=off", "--model-control-mode=poll", "--ready-file=r", "--limit=a=1")
    found = {name: values[name] for name in ("grpc_port", "settle_secs", "log_info", "model_control_mode", "ready_file", "limit")}
    assert found == {
        "grpc_port": 1,
        "settle_secs": 0.5,
        "log_info": False,
        "model_control_mode": ControlChoice.POLL,
        "ready_file": Path("r"),
        "limit": ["a=1"],
    }


def test_of_several_values_the_last_counts_and_lists_take_all():
    values = read("--grpc-port=1", "--load-model=a", "--grpc-port=2", "--load-model=b")
    assert (values["grpc_port"], values["load_model"]) == (2, ["a", "b"])


def test_the_command_line_stands_above_the_environment_and_an_empty_variable_is_none():
    assert read("--grpc-port=1", STOKER_GRPC_PORT="2")["grpc_port"] == 1
    assert read(STOKER_GRPC_PORT="2", STOKER_PORT="3")["grpc_port"] == 2
    assert read(STOKER_GRPC_PORT="", STOKER_PORT="3")["grpc_port"] == 3
    assert read("--grpc-port=1", STOKER_GRPC_PORT="no number")["grpc_port"] == 1


def test_variables_hold_lists():
    assert read(STOKER_LOAD_MODEL=" a  b ")["load_model"] == ["a", "b"]
    assert read(STOKER_MODEL_BASE_PATH="/a:1\n\n  s3://b \n")["model_base_path"] == [Path("/a:1"), Path("s3://b")]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--grpc-prt=1"], "unknown flag --grpc-prt: is --grpc-port meant?"),
        (["--qqqqqq"], "unknown flag --qqqqqq"),
        (["-x"], "unexpected argument '-x': flags are --name=value"),
        (["--", "x"], "unexpected argument 'x': flags are --name=value"),
        (["--grpc-port"], "--grpc-port needs a value"),
        (["--help=1"], "--help takes no value"),
        (["--grpc-port=x", "--http-port=y"], "--grpc-port=x: expected a whole number from 0 to 65535"),
        (["--grpc-port=x", "stray"], "unexpected argument 'stray': flags are --name=value"),
        (["--limit", "--help", "--nosuch"], "unknown flag --nosuch"),
    ],
)
def test_what_cannot_be_read_is_named(words: list[str], text: str):
    with pytest.raises(FlagError) as refused:
        read_flags(spell(words), {})
    assert str(refused.value) == text


def test_a_bad_variable_is_named_as_the_one_that_was_read():
    with pytest.raises(FlagError, match=r"^STOKER_PORT=abc: expected a whole number from 0 to 65535$"):
        read_flags([], {"STOKER_PORT": "abc", "STOKER_GRPC_PORT": ""})


def test_a_page_is_given_whatever_else_is_wrong_and_the_first_asked_for():
    assert read_flags(spell(["--grpc-port=x", "--help", "--version"]), {}) is Page.HELP
    assert read_flags(spell(["--version", "--help", "stray"]), {"STOKER_PORT": "abc"}) is Page.VERSION


def test_the_end_of_the_flags_may_be_said():
    assert read("--grpc-port=1", "--")["grpc_port"] == 1


@pytest.mark.parametrize("given", ["/data/v1:final", "C:\\models", "s3:/bucket/models"])
def test_a_colon_is_part_of_a_repositorys_path(given):
    assert read(f"--model-repository={given}", "--model-base-path=/other")["model_base_path"] == [Path(given), Path("/other")]
    assert ModelFlags(model_base_path=[Path(given)]).settings()["repositories"] == (Path(given),)
