from pathlib import Path

import pytest

from stoker.backends.api.backend import Backend, DescribeRequest
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.identity.backend import IdentityBackend
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import empty_config, parse_config_json, parse_pbtxt
from stoker.server.config.report import ConfigError
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.lifecycle.check import Loading, check_repository
from stoker.server.lifecycle.model_code import check_may_run, code_notices, completed_by_model
from stoker.server.lifecycle.settings import PythonModels


class CodeBackend(IdentityBackend):
    """A backend whose models are code, which returns `completed` as their configuration."""

    name = "code"
    runs_model_code = True

    def __init__(self, completed: str | None = None) -> None:
        self.completed = completed
        self.asked: list[DescribeRequest] = []

    def describe(self, request: DescribeRequest) -> str | None:
        self.asked.append(request)
        return self.completed


LOCAL = empty_config("m")
SENT = parse_config_json('{"backend": "code"}', model_name="m")
SENT_ENVIRONMENT = parse_config_json('{"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/opt"}}}', model_name="m")
SENT_THREAD = parse_config_json('{"parameters": {"execution": {"string_value": "thread"}}}', model_name="m")
SENT_PROCESS = parse_config_json('{"parameters": {"execution": {"string_value": "process"}}}', model_name="m")
FILES = {"model.py": b""}


@pytest.mark.parametrize(
    ("parsed", "files", "allowed", "expected"),
    [
        (LOCAL, {}, PythonModels.AUTO, None),
        (SENT, {}, PythonModels.AUTO, None),
        (SENT, FILES, PythonModels.AUTO, "its files came with the load request"),
        (SENT_ENVIRONMENT, {}, PythonModels.AUTO, "EXECUTION_ENV_PATH names a program"),
        (SENT_ENVIRONMENT, FILES, PythonModels.ON, None),
        (SENT_THREAD, {}, PythonModels.AUTO, "parameter execution 'thread' runs code of the model in the server's own process"),
        (SENT_THREAD, {}, PythonModels.ON, None),
        (SENT_PROCESS, {}, PythonModels.AUTO, None),
        (LOCAL, {}, PythonModels.OFF, "--allow-python-models=off forbids"),
    ],
)
def test_code_runs_only_from_where_the_operator_allows_it(
    parsed: ParsedConfig, files: dict[str, bytes], allowed: PythonModels, expected: str | None
):
    if expected is None:
        check_may_run(CodeBackend(), parsed, files, allowed)
        return
    with pytest.raises(ModelLoadError, match=expected) as caught:
        check_may_run(CodeBackend(), parsed, files, allowed)
    assert "/opt" not in caught.value.message


@pytest.mark.parametrize("allowed", PythonModels)
def test_models_that_are_no_code_are_not_concerned(allowed: PythonModels):
    check_may_run(IdentityBackend(), SENT, FILES, allowed)


def entry(name: str, backend: str, state: VersionState) -> IndexEntry:
    return IndexEntry(name=name, version=1, state=state, reason="", backend=backend)


@pytest.mark.parametrize(
    ("state", "allowed", "expected"),
    [
        (VersionState.READY, PythonModels.AUTO, ["code of models runs with the rights of the server: m (--allow-python-models=auto)"]),
        (VersionState.FAILED, PythonModels.AUTO, []),
        (VersionState.FAILED, PythonModels.ON, ["clients that may load models can run code on this host (--allow-python-models=on)"]),
        (VersionState.FAILED, PythonModels.OFF, []),
    ],
)
def test_start_up_output_has_a_note_of_code(state: VersionState, allowed: PythonModels, expected: list[str]):
    index = [entry("m", "code", state), entry("n", "identity", VersionState.READY)]
    assert list(code_notices(index, BackendRegistry((CodeBackend(), IdentityBackend())), allowed)) == expected


def test_note_names_ten_models_and_counts_the_others():
    index = [entry(f"m{number:02}", "code", VersionState.READY) for number in range(12)]
    (note,) = code_notices(index, BackendRegistry((CodeBackend(),)), PythonModels.AUTO)
    assert "m09 and 2 more" in note
    assert "m10" not in note


def completed(parsed: ParsedConfig, backend: Backend) -> ParsedConfig:
    return completed_by_model(parsed, backend, ModelFiles(Path(), {}), "model.py", 3, Path("models/m"))


def test_model_completes_the_configuration_as_written():
    written = parse_pbtxt('backend: "code"\nparameters { key: "k" value { string_value: "v" } }', source="m/config.pbtxt", model_name="m")
    backend = CodeBackend(
        '{"name": "m", "backend": "code", "max_batch_size": 4, "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}]}'
    )
    found = completed(written, backend)
    assert found.message.max_batch_size == 4
    assert [tensor.name for tensor in found.message.input] == ["X"]
    assert (found.is_described, found.source) == (True, "m/config.pbtxt")
    (request,) = backend.asked
    assert (request.model_name, request.version, dict(request.parameters)) == ("m", 3, {"k": "v"})
    assert '"max_batch_size": 0' in request.config_json


def test_model_that_completes_nothing_keeps_its_configuration():
    assert completed(LOCAL, CodeBackend(None)) is LOCAL
    assert completed(LOCAL, IdentityBackend()) is LOCAL


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ('{"name": "other"}', "changes its name to 'other'"),
        ('{"name": "m", "version_policy": {"all": {}}}', "version_policy: the model changes it"),
        ('{"name": "m", "max_batch_size": "many"}', "completes its configuration wrongly"),
        ('{"name": "m", "no_field": 1}', "no_field"),
        ('{"name": "m", "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-5]}]}', "dims"),
    ],
)
def test_wrong_completion_is_an_error_of_the_configuration(made: str, expected: str):
    with pytest.raises(ConfigError, match=expected):
        completed(LOCAL, CodeBackend(made))


def test_check_runs_no_code_where_nothing_is_loaded(tmp_path: Path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.identity").touch()
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "code"')
    backend = CodeBackend("{}")
    report = check_repository([tmp_path], BackendRegistry((backend,)), loading=Loading.NONE)
    (version,) = report.models[0].versions
    assert version.errors == ()
    assert version.untried == "its code completes the configuration, and --no-load runs no code"
    assert backend.asked == []
