"""How the values of flags are read from a command line and the environment."""

from pathlib import Path
from typing import Any

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import Page, read_command, read_flags, spell
from stoker.server.flags.serving import ControlChoice, ModelFlags
from stoker.server.flags.table import built, flags, settings_of
from stoker.server.server_config import ServerConfig


def read(*words: str, **variables: str) -> dict[str, Any]:
    values = read_flags(spell(words), variables)
    assert not isinstance(values, Page)
    return values


def test_missing_flags_leave_every_setting_at_its_default():
    assert read() == {}
    settings = settings_of({})
    assert built(ServerConfig, settings) == ServerConfig(repositories=())


def test_every_flag_of_a_setting_sets_that_field():
    for name, each in flags().items():
        if each.group is None:
            config = built(ServerConfig, settings_of({name: "given"}))
            for part in each.path.split("."):
                config = getattr(config, part)
            assert config == "given", name


def test_value_follows_the_flag_or_is_the_next_argument_whatever_its_first_character():
    assert read("--id=a=b")["id"] == "a=b"
    assert read("--id", "--b")["id"] == "--b"
    assert read("--id=")["id"] == read("--id", "")["id"] == ""


def test_values_have_the_type_of_their_field():
    values = read("--grpc-port=1", "--settle-secs=0.5", "--log-info=off", "--model-control-mode=poll", "--ready-file=r", "--limit=a=1")
    found = {name: values[name] for name in ("grpc-port", "settle-secs", "log-info", "model-control-mode", "ready-file", "limit")}
    assert found == {
        "grpc-port": 1,
        "settle-secs": 0.5,
        "log-info": False,
        "model-control-mode": ControlChoice.POLL,
        "ready-file": Path("r"),
        "limit": ["a=1"],
    }


def test_last_of_several_values_applies_and_lists_collect_all():
    values = read("--grpc-port=1", "--load-model=a", "--grpc-port=2", "--load-model=b")
    assert (values["grpc-port"], values["load-model"]) == (2, ["a", "b"])


def test_command_line_overrides_the_environment_and_an_empty_variable_is_unset():
    assert read("--grpc-port=1", STOKER_GRPC_PORT="2")["grpc-port"] == 1
    assert read(STOKER_GRPC_PORT="2", STOKER_PORT="3")["grpc-port"] == 2
    assert read(STOKER_GRPC_PORT="", STOKER_PORT="3")["grpc-port"] == 3
    assert read("--grpc-port=1", STOKER_GRPC_PORT="no number")["grpc-port"] == 1


def test_variables_hold_lists():
    assert read(STOKER_LOAD_MODEL=" a  b ")["load-model"] == ["a", "b"]
    assert read(STOKER_MODEL_BASE_PATH="/a:1\n\n  s3://b \n")["model-base-path"] == [Path("/a:1"), Path("s3://b")]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--grpc-prt=1"], "unknown flag --grpc-prt; did you mean --grpc-port?"),
        (["--model-repositry=m"], "unknown flag --model-repositry; did you mean --model-repository?"),
        (["--rest_api_prt=1"], "unknown flag --rest-api-prt; did you mean --rest-api-port?"),
        (["--fs_poll_wait_second=1"], "unknown flag --fs-poll-wait-second; did you mean --fs-poll-wait-seconds?"),
        (["--qqqqqq"], "unknown flag --qqqqqq"),
        (["-x"], "unexpected argument '-x': flags are --name=value"),
        (["nowhere/net"], "unexpected argument 'nowhere/net': no such file or folder"),
        (["net.onnx"], "unexpected argument 'net.onnx': no such file or folder"),
        (["--", "x"], "unexpected argument 'x': flags are --name=value"),
        (["--grpc-port"], "--grpc-port needs a value"),
        (["--help=1"], "--help takes no value"),
        (["--grpc-port=x", "--http-port=y"], "--grpc-port=x: expected a whole number from 0 to 65535"),
        (["--grpc-port=x", "stray"], "unexpected argument 'stray': flags are --name=value"),
        (["--limit", "--help", "--nosuch"], "unknown flag --nosuch"),
    ],
)
def test_unreadable_value_is_named(words: list[str], text: str):
    with pytest.raises(FlagError) as refused:
        read_flags(spell(words), {})
    assert str(refused.value) == text


def test_bad_variable_is_named_by_the_name_that_was_read():
    with pytest.raises(FlagError, match=r"^STOKER_PORT=abc: expected a whole number from 0 to 65535$"):
        read_flags([], {"STOKER_PORT": "abc", "STOKER_GRPC_PORT": ""})


def test_help_or_version_is_printed_despite_other_errors_and_the_first_one_wins():
    assert read_flags(spell(["--grpc-port=x", "--help", "--version"]), {}) is Page.HELP
    assert read_flags(spell(["--version", "--help", "stray"]), {"STOKER_PORT": "abc"}) is Page.VERSION


def test_double_dash_ends_the_flags():
    assert read("--grpc-port=1", "--")["grpc-port"] == 1


def test_words_that_are_paths_are_models_to_serve(tmp_path: Path):
    file, models = tmp_path / "net.onnx", tmp_path / "models"
    file.touch()
    (models / "m" / "1").mkdir(parents=True)
    config = read_command([str(file), "--grpc-port=0", str(models)], {})
    assert isinstance(config, ServerConfig)
    assert (config.paths, config.repositories) == ((file,), (models,))
    with pytest.raises(FlagError, match="--model-name serves one model, but the command line gives 2 paths"):
        read_command([str(file), str(models), "--model-name=net"], {})
    with pytest.raises(FlagError, match="say both what is served"):
        read_command([str(file), "--model-config-file=x"], {})
    with pytest.raises(FlagError, match="--allow-model-operate changes a model repository: give one"):
        read_command([str(file), "--allow-model-operate"], {})


def test_namespaces_are_those_of_model_repositories(tmp_path: Path):
    repositories = [f"--model-repository={tmp_path / name}" for name in ("a", "b")]
    for given, has_namespaces in ((["--model-namespacing=true"], True), (["--model-namespacing=false"], False), ([], False)):
        config = read_command([*repositories, *given], {})
        assert isinstance(config, ServerConfig)
        assert config.has_namespaces is has_namespaces
    file = tmp_path / "net.onnx"
    file.touch()
    for others in ([str(file)], ["--model-config-file=x"], [repositories[0], "--model-name=net"]):
        with pytest.raises(FlagError, match="--model-namespacing makes each model repository a namespace"):
            read_command([*others, "--model-namespacing=true"], {})
    with pytest.raises(FlagError, match="--allow-model-operate changes a model by its name"):
        read_command([*repositories, "--allow-model-operate", "--model-namespacing=true"], {})


@pytest.mark.parametrize("given", ["/data/v1:final", "C:\\models", "s3:/bucket/models"])
def test_colon_is_part_of_a_repository_path(given):
    assert read(f"--model-repository={given}", "--model-base-path=/other")["model-base-path"] == [Path(given), Path("/other")]
    assert ModelFlags(model_base_path=[Path(given)]).settings()["repositories"] == (Path(given),)
