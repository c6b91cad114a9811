"""The file of `--config`: what it sets, its errors, and the file that `--print-config` prints."""

from pathlib import Path
from typing import Any

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import Page, read_command, read_flags, spell
from stoker.server.flags.config_file import MAX_FILE_BYTES, Given, printed, read_file
from stoker.server.flags.table import flags
from stoker.server.main import main
from stoker.server.server_config import ServerConfig

SECRETS = {
    "http-restricted-api": "inference:authorization=s3cret",
    "grpc-restricted-protocol": "inference:authorization=s3cret",
    "cache-config": "redis,host=h,password=s3cret",
    "trace-config": "opentelemetry,url=http://user:s3cret@collector",
}


def written(at: Path, text: str | bytes) -> Path:
    at.joinpath("stoker.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return at / "stoker.yaml"


def read(file: Path, *words: str, **variables: str) -> dict[str, Any]:
    values = read_flags(spell([f"--config={file}", *words]), variables)
    assert not isinstance(values, Page)
    values.pop("config")
    return values


def refusal(file: Path, *words: str) -> str:
    with pytest.raises(FlagError) as refused:
        read_flags(spell([f"--config={file}", *words]), {})
    return str(refused.value).replace(f"{file.parent}/", "")


def shown(*words: str, **variables: str) -> str:
    text = read_command([*words, "--print-config"], variables)
    assert isinstance(text, str)
    return text


def test_values_have_the_type_that_flags_give_them(tmp_path: Path):
    file = written(
        tmp_path,
        """# A comment.
grpc_port: 9000          # as a flag, with _ or -
rest-api-port: "9001"    # an alias
log-info: no
settle-secs: 0.5
id: 0x10
tuning: off
model-base-path: models
load-model: [a, "b c"]
ready-file: run/ready
""",
    )
    assert read(file) == {
        "grpc-port": 9000,
        "http-port": 9001,
        "log-info": False,
        "settle-secs": 0.5,
        "id": "0x10",
        "tuning": "off",
        "model-base-path": [Path("models")],
        "load-model": ["a", "b c"],
        "ready-file": Path("run/ready"),
    }


def test_flags_override_variables_and_variables_the_file(tmp_path: Path):
    file = written(tmp_path, "grpc-port: 1\nhttp-port: 2\nmetrics-port: 3\nload-model: [a, b]\n")
    found = read(file, "--grpc-port=11", "--load-model=c", STOKER_GRPC_PORT="21", STOKER_HTTP_PORT="22")
    assert found == {"grpc-port": 11, "http-port": 22, "metrics-port": 3, "load-model": ["c"]}


def test_variable_names_the_file(tmp_path: Path):
    file = written(tmp_path, "grpc-port: 1\n")
    values = read_flags([], {"STOKER_CONFIG": str(file)})
    assert not isinstance(values, Page)
    assert values["grpc-port"] == 1


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_file_without_content_sets_nothing(text: str, tmp_path: Path):
    assert read(written(tmp_path, text)) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grpc-prt: 1", "stoker.yaml:1: unknown key 'grpc-prt': expected the name of a flag; did you mean grpc-port?"),
        ("\nqqqqqqqq: 1", "stoker.yaml:2: unknown key 'qqqqqqqq': expected the name of a flag"),
        ("config: other.yaml", "stoker.yaml:1: 'config' names a file, which only a flag or STOKER_CONFIG can do"),
        ("help: true", "stoker.yaml:1: unknown key 'help': expected the name of a flag"),
        ("id: a\ngrpc-port: x", "stoker.yaml:2: grpc-port: x: expected a whole number from 0 to 65535"),
        ("log-info: maybe", "stoker.yaml:1: log-info: maybe: expected true, false, 1 or 0"),
        ("grpc-port: [1, 2]", "stoker.yaml:1: grpc-port: a list: expected a whole number from 0 to 65535"),
        ("grpc-front:\n  h2: true", "stoker.yaml:1: grpc-front: a mapping: expected h2 or grpcio"),
        ("load-model:\n  - a\n  - {b: c}", "stoker.yaml:3: load-model: a mapping: expected a text, or a list of them"),
        ("model-base-path:", "stoker.yaml:1: model-base-path: no value: expected a path, or a list of them"),
        ("model-base-path: []", "stoker.yaml:1: model-base-path: an empty list: expected a path, or a list of them"),
        ("grpc-port: null", "stoker.yaml:1: grpc-port: no value: expected a whole number from 0 to 65535"),
        ("id: a\nid: b", "stoker.yaml:2: 'id' is given twice, first on line 1"),
        (
            "grpc_port: 1\nid: a\nport: 2",
            "stoker.yaml:3: 'grpc_port' and 'port' are one flag, given twice, first on line 1",
        ),
        ("- a\n- b", "stoker.yaml:1: expected one flag on each line, such as 'grpc-port: 8500'"),
        ("text", "stoker.yaml:1: expected one flag on each line, such as 'grpc-port: 8500'"),
        ("[a]: b", "stoker.yaml:1: expected the name of a flag before ':'"),
        ("id: a\n  b: c", "stoker.yaml:2: no valid YAML: mapping values are not allowed here"),
        ("id: a\n---\nid: b", "stoker.yaml:2: no valid YAML: but found another document"),
        ("id: a\n\nid: b\x07", "stoker.yaml:3: no valid YAML: special characters are not allowed"),
        ("id: *a", "stoker.yaml:1: no valid YAML: found undefined alias 'a'"),
        (b"id: a\nid: \xff", "stoker.yaml:2: expected UTF-8 text"),
        ("a: " + "[" * 500, "stoker.yaml: no valid YAML: values are nested too deeply"),
    ],
)
def test_error_names_file_line_and_key(text: str | bytes, message: str, tmp_path: Path):
    assert refusal(written(tmp_path, text)) == message


def test_file_that_cannot_be_read_is_named(tmp_path: Path):
    assert refusal(tmp_path / "none.yaml") == "--config=none.yaml: the file cannot be read: No such file or directory"
    assert refusal(written(tmp_path, "#" * (MAX_FILE_BYTES + 1))) == f"--config=stoker.yaml: the file has more than {MAX_FILE_BYTES} bytes"


def test_error_in_a_value_that_a_flag_overrides_is_no_error(tmp_path: Path):
    assert read(written(tmp_path, "grpc-port: x"), "--grpc-port=1") == {"grpc-port": 1}


def test_printed_configuration_names_the_origin_of_each_value(tmp_path: Path):
    file = written(tmp_path, "\nload-model: [a, b]\nmodel-control-mode: explicit\n")
    lines = shown(f"--config={file}", "--model_base_path=models", STOKER_PORT="9000").splitlines()
    at = lines.index(f"load-model:  # {file}:2")
    assert lines[at + 1 : at + 3] == ["  - a", "  - b"]
    at = lines.index("model-base-path:  # command line")
    assert lines[at + 1] == "  - models"
    assert "grpc-port: 9000  # STOKER_PORT" in lines
    assert "# http-port: 8501  # default" in lines
    assert "# metrics-port:" in lines


@pytest.mark.parametrize(
    "text",
    ["a: b", "a #b", "- x", "null", "", " a ", '"', "'", "a\nb", "100", "é", "\U0001f600", "&a", "*a", "a:", "~", "\udcff", "@x", "\x7f"],
)
def test_printed_configuration_is_read_as_the_same_again(text: str, tmp_path: Path):
    words = ["--model_base_path=models", f"--id={text}", "--limit=json_depth=9", f"--model-path={text}x"]
    first = shown(*words)
    again = shown(f"--config={written(tmp_path, first)}")
    assert read(tmp_path / "stoker.yaml") == read_flags(spell(words), {})
    assert [line.partition("  # ")[0] for line in again.splitlines()] == [line.partition("  # ")[0] for line in first.splitlines()]


def test_every_default_that_is_printed_is_a_value_of_its_flag(tmp_path: Path):
    prefix, suffix = "# ", "  # default"
    defaults = [line[len(prefix) : -len(suffix)] for line in shown("--model_base_path=m").splitlines() if line.endswith(suffix)]
    assert len(defaults) > 50
    values = read(written(tmp_path, "\n".join(defaults)))
    assert {name: value for name, value in values.items() if value != flags()[name].default and flags()[name].flag.shown is None} == {}


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_secret_is_not_printed(name: str):
    assert flags()[name].flag.holds_secret(SECRETS[name])
    text = printed({name: Given(["public", SECRETS[name]], "", "stoker.yaml:2")}, has_key_variable=False)
    assert "s3cret" not in text
    assert f"# {name}: a secret, not printed  # stoker.yaml:2" in text.splitlines()


def test_api_key_is_not_printed(tmp_path: Path):
    text = shown("--model_base_path=m", STOKER_API_KEY="s3cret-s3cret-s3cret")
    assert "s3cret" not in text
    assert "# The API key is set by STOKER_API_KEY, and is not printed." in text.splitlines()
    (tmp_path / "key").write_text("s3cret-s3cret-s3cret\n")
    text = shown("--model_base_path=m", f"--api-key-file={tmp_path / 'key'}")
    assert "s3cret" not in text
    assert f"api-key-file: {tmp_path / 'key'}  # command line" in text.splitlines()


def test_values_that_prevent_a_start_are_not_printed():
    with pytest.raises(FlagError, match="Missing option '--model-base-path'"):
        read_command(["--print-config"], {})
    with pytest.raises(FlagError, match="--print-config takes no value"):
        read_command(["--print-config=yes"], {})


def test_value_of_a_flag_may_be_the_word_print_config():
    assert isinstance(read_command(["--model_base_path=m", "--id", "--print-config"], {}), ServerConfig)


def test_every_flag_but_config_is_a_key_with_each_of_its_names(tmp_path: Path):
    for name, each in flags().items():
        for key in (name, name.replace("-", "_"), *each.flag.aliases):
            if name != "config":
                assert list(read_file(written(tmp_path, f"{key}: x"))) == [name]


def test_command_prints_the_configuration_or_one_line_with_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = written(tmp_path, "model-base-path: models\ngrpc-port: 9000\n")
    with pytest.raises(SystemExit) as end:
        main([f"--config={file}", "--print-config"])
    assert end.value.code == 0
    assert f"grpc-port: 9000  # {file}:2" in capsys.readouterr().out.splitlines()
    file.write_text("grpc-prt: 9000\n")
    with pytest.raises(SystemExit) as end:
        main([f"--config={file}"])
    assert end.value.code == 2
    assert (
        capsys.readouterr().err == f"serve: error: {file}:1: unknown key 'grpc-prt': expected the name of a flag; did you mean grpc-port?\n"
    )
