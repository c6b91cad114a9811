"""`stoker check`: every value explained, every problem found, nothing served."""

import json
from pathlib import Path

import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.testing.fake_backend import FakeBackend, fake_facts
from stoker.cli.main import main
from stoker.server.config.report import FindingKind
from stoker.server.lifecycle.check import RepositoryReport, check_repository
from stoker.server.lifecycle.folder import LINKS_HINT
from tests.fakes import onnx_models


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(fake_facts(2))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def add_model(root: Path, backend: FakeBackend, name: str, *versions: int, config: str | None = None) -> Path:
    for version in versions:
        (root / name / str(version)).mkdir(parents=True)
        (root / name / str(version) / backend.default_model_filename).write_bytes(b"model")
    (root / name).mkdir(exist_ok=True)
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)
    return root / name


def check(root: Path, backend: FakeBackend) -> RepositoryReport:
    return check_repository([root], BackendRegistry((backend,)))


def test_model_without_config_is_explained_and_a_config_suggested(root: Path, backend: FakeBackend) -> None:
    add_model(root, backend, "m", 1)
    report = check(root, backend)
    (model,) = report.models
    (version,) = model.versions
    assert report.is_good
    assert not model.has_config_file
    assert (version.backend, version.model_filename) == (backend.name, backend.default_model_filename)
    inferred = {finding.field for finding in version.findings if finding.kind is FindingKind.INFERRED}
    assert {"input[0]", "output[0]"} <= {field.split(".")[0] for field in inferred}
    assert 'name: "x"' in version.suggestion
    assert backend.instances == [], "checking loads nothing"


def test_suggested_config_is_complete_and_passes_the_check(root: Path, backend: FakeBackend) -> None:
    folder = add_model(root, backend, "m", 1)
    suggestion = check(root, backend).models[0].versions[0].suggestion
    (folder / "config.pbtxt").write_text(suggestion)
    (again,) = check(root, backend).models
    assert again.problems == ()
    assert again.versions[0].suggestion == suggestion


def test_only_desired_versions_are_inspected(root: Path, backend: FakeBackend) -> None:
    add_model(root, backend, "m", 1, 2, 3, config="version_policy { specific { versions: [1, 7] } }")
    (model,) = check(root, backend).models
    assert model.present_versions == (1, 2, 3)
    assert [version.version for version in model.versions] == [1, 7]
    assert model.version_policy == "specific 1, 7"
    assert model.problems == ("version 7: named by the version policy, but not in the repository",)


def test_typo_is_reported_with_its_line(root: Path, backend: FakeBackend) -> None:
    add_model(root, backend, "bad", 1, config="max_batch_size: 4\ninptu {}")
    add_model(root, backend, "good", 1)
    report = check(root, backend)
    assert not report.is_good
    assert [bool(model.problems) for model in report.models] == [True, False]
    assert report.models[0].problems[0].startswith("bad/config.pbtxt:2:")


def test_config_that_contradicts_the_file_is_reported(root: Path, backend: FakeBackend) -> None:
    add_model(root, backend, "m", 1, config=f'backend: "{backend.name}" input {{ name: "z" data_type: TYPE_FP32 dims: [2] }}')
    (model,) = check(root, backend).models
    assert "z" in model.problems[0]


def test_model_without_versions_is_a_problem_unless_it_wants_none(root: Path, backend: FakeBackend) -> None:
    add_model(root, backend, "m", config="max_batch_size: 1")
    assert check(root, backend).models[0].problems == ("no version folder such as '1' holds anything to serve",)


def test_inspection_error_is_a_problem_of_its_version(root: Path, backend: FakeBackend) -> None:
    backend.inspect_errors[b"model"] = ModelLoadError("truncated at byte 5")
    add_model(root, backend, "m", 1)
    assert check(root, backend).models[0].problems == ("version 1: truncated at byte 5",)


def test_backend_that_raises_any_exception_fails_only_its_version(root: Path, backend: FakeBackend) -> None:
    backend.inspect_errors[b"model"] = ZeroDivisionError("oops")  # type: ignore[assignment]
    add_model(root, backend, "m", 1)
    assert check(root, backend).models[0].problems == (f"version 1: backend '{backend.name}' raised ZeroDivisionError: oops",)


def test_links_and_missing_labels_are_problems(root: Path, backend: FakeBackend, tmp_path: Path) -> None:
    folder = add_model(root, backend, "linked", 1)
    (folder / "1" / "weights").symlink_to("/etc/passwd")
    (folder / "2").symlink_to(folder / "1")
    (folder / "config.pbtxt").write_text("version_policy { all {} }")
    add_model(
        root, backend, "labels", 1, config='output { name: "y" data_type: TYPE_FP32 dims: [2] label_filename: "no.txt" } max_batch_size: 2'
    )
    labels, linked = check(root, backend).models
    assert "no.txt" in labels.problems[0]
    assert linked.problems == (
        f"version 1: 'weights' is a symbolic link; a version folder may hold only plain files and folders{LINKS_HINT}",
        f"version 2: the version folder is a symbolic link; it must be a real folder{LINKS_HINT}",
    )


def test_every_problem_is_reported_with_its_version(root: Path, backend: FakeBackend) -> None:
    add_model(root, backend, "m", 1, 2, config='version_policy { all {} }\ninput { name: "z" }\noutput { name: "w" }')
    (model,) = check(root, backend).models
    assert [problem.partition(" ")[2].split(": ")[:3] for problem in model.problems] == [
        [version, f"m/config.pbtxt:{line}", field]
        for version in ("1", "2")
        for line, field in ((2, "input[0].name"), (2, "input"), (3, "output[0].name"))
    ]


def test_every_problem_of_a_config_is_a_separate_entry(root: Path, backend: FakeBackend) -> None:
    add_model(root, backend, "m", 1, config="max_batch: 1\ninptu {}")
    assert [problem.split(": ")[0] for problem in check(root, backend).models[0].problems] == ["m/config.pbtxt:1", "m/config.pbtxt:2"]


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def test_load_refusal_is_reported_with_its_line_and_hides_no_warning(root: Path) -> None:
    config = (
        parameter("intra_op_thread_count", "lots")
        + parameter("execution_mode", "7")
        + "optimization { graph { level: 5 } }\n"
        + parameter("unheard_of", "1")
    )
    add_onnx(root, "m", config)
    (model,) = check_repository([root], BackendRegistry()).models
    assert model.problems == (
        "version 1: m/config.pbtxt:1: parameters[\"intra_op_thread_count\"]: takes a whole number from 0 (the default) to 1024, not 'lots'",
        "version 1: m/config.pbtxt:2: parameters[\"execution_mode\"]: takes 0 (sequential) or 1 (parallel), not '7'",
        "version 1: m/config.pbtxt:3: optimization.graph.level: takes -1 (basic), 1 (extended), 2 (none), or 0 or nothing (all), not 5",
    )
    (warning,) = model.versions[0].warnings
    assert warning.startswith("m/config.pbtxt:4: parameters[\"unheard_of\"]: backend 'onnxruntime' does not read it")


def test_identity_of_different_tensors_is_refused(root: Path) -> None:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.identity").touch()
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: 2 }\noutput { name: "y"\n data_type: TYPE_INT32 dims: 2 }'
    (root / "m" / "config.pbtxt").write_text(tensors)
    (model,) = check_repository([root], BackendRegistry()).models
    assert model.problems[0].startswith("version 1: m/config.pbtxt:3: output[0].data_type: output 'y' is TYPE_INT32 [2], but the input")


def test_invalid_warm_up_data_are_a_problem(root: Path) -> None:
    zeros = "value { data_type: TYPE_FP32 dims: 2 zero_data: true }"
    from_file = 'value { data_type: TYPE_FP32 dims: 2 input_data_file: "absent" }'
    sample = f'model_warmup {{ name: "s" batch_size: 1 inputs {{ key: "a" {zeros} }} inputs {{ key: "b" {from_file} }} }}'
    add_onnx(root, "m", sample)
    (problem,) = check_repository([root], BackendRegistry()).models[0].problems
    assert problem == "version 1: model_warmup 's', input 'b', input_data_file 'absent': No such file or directory"


def test_report_is_json_data(root: Path, backend: FakeBackend) -> None:
    add_model(root, backend, "m", 1, config="version_policy { all {} }")
    add_model(root, backend, "bad", 1, config="nonsense")
    (root / "pictures").mkdir()
    data = json.loads(json.dumps(check(root, backend).to_dict()))
    assert data["ok"] is False
    assert [model["name"] for model in data["models"]] == ["bad", "m"]
    assert data["models"][1]["versions"][0]["errors"] == []
    assert data["models"][1]["versions"][0]["findings"][0].keys() == {"field", "kind", "text"}
    assert data["notes"] == ["folder 'pictures' is passed over: it has neither a config.pbtxt nor a version folder such as '1'"]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["check", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def add_onnx(root: Path, name: str, config: str | None = None) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.onnx").write_bytes(onnx_models.sum_and_difference().SerializeToString())
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)


def test_command_explains_a_valid_repository_and_exits_with_0(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_onnx(root, "m")
    assert run(str(root), "--suggest") == 0
    out = capsys.readouterr().out
    assert "m: ok (no config.pbtxt; versions 1, serves latest 1)" in out
    assert "inferred" in out
    assert 'backend: "onnxruntime"' in out
    assert out.endswith("1 model, no problems\n")


def test_command_names_problems_and_exits_with_1(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_onnx(root, "m", "max_batch_sise: 3")
    assert run(str(root)) == 1
    out = capsys.readouterr().out
    assert "m: PROBLEM" in out
    assert "error: m/config.pbtxt:1: max_batch_sise" in out
    assert "1 model, 1 with problems" in out


def test_command_prints_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_onnx(root, "m")
    assert run("--json", str(root)) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["versions"][0]["backend"] == "onnxruntime"


def test_unreadable_repository_exits_with_2(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(root / "missing")) == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err
