"""Trial loads of `stoker check`: in a process of their own, so that no model harms the check or the other models."""

import json
from pathlib import Path

import onnx
import pytest

from stoker.backends.testing.fake_backend import FakeBackend
from stoker.cli.main import main
from stoker.server.lifecycle import check as check_module
from stoker.server.lifecycle import trial_load
from stoker.server.lifecycle.check import Loading, RepositoryReport, check_repository
from tests.fakes import onnx_models
from tests.fakes.trial_backends import harmful_registry

pytestmark = pytest.mark.slow

UNKNOWN_OPERATOR = onnx.helper.make_model(
    onnx.helper.make_graph(
        [onnx.helper.make_node("Tokenize", ["x"], ["y"], domain="ai.custom")],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 2])],
    ),
    opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.custom", 1)],
    ir_version=8,
)


def add_model(root: Path, name: str, content: bytes, filename: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / filename).write_bytes(content)


def check(root: Path, loading: Loading, *, timeout_s: float = 60.0, messages: list[str] | None = None) -> RepositoryReport:
    return check_repository(
        [root],
        harmful_registry(),
        loading=loading,
        timeout_s=timeout_s,
        trial_registry=harmful_registry,
        progress=(messages if messages is not None else []).append,
    )


def test_model_that_crashes_its_process_is_named_and_the_others_are_still_loaded(tmp_path: Path) -> None:
    for name, content in (("a", b"good"), ("b", b"crash"), ("c", b"raise"), ("d", b"memory"), ("e", b"good")):
        add_model(tmp_path, name, content, FakeBackend.default_model_filename)
    messages: list[str] = []
    report = check(tmp_path, Loading.SMALL, messages=messages)
    found = {model.name: model.versions[0] for model in report.models}
    assert {name: version.is_loaded for name, version in found.items()} == {"a": True, "b": False, "c": False, "d": False, "e": True}
    assert found["b"].errors == ("load FAILED: the process that loaded it ended with SIGSEGV: Fatal Python error: Segmentation fault",)
    assert found["c"].errors == ("load FAILED: its operators are not known",)
    assert "MemoryError" in found["d"].errors[0]
    assert [text for text in messages if text.startswith("loading")] == [f"loading {name} version 1" for name in "abcde"]


def test_endless_load_is_aborted(tmp_path: Path) -> None:
    add_model(tmp_path, "a", b"hang", FakeBackend.default_model_filename)
    add_model(tmp_path, "b", b"good", FakeBackend.default_model_filename)
    first, second = check(tmp_path, Loading.ALL, timeout_s=0.5).models
    assert first.problems == ("version 1: load FAILED: the load takes longer than 0.5 s",)
    assert second.name == "b"


def test_endless_load_ends_with_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The load's own process ends it, without a parent that waits.
    monkeypatch.setattr(trial_load, "_SOLO_GRACE_S", -59.9)
    add_model(tmp_path, "a", b"hang", FakeBackend.default_model_filename)
    (model,) = check(tmp_path, Loading.ALL, timeout_s=60.0).models
    assert model.problems == ("version 1: load FAILED: the process that loaded it ended with SIGALRM",)


def test_large_versions_are_loaded_on_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_model(tmp_path, "m", b"raise", FakeBackend.default_model_filename)
    monkeypatch.setattr(check_module, "TRIAL_LOAD_BYTES", 1)
    small = check(tmp_path, Loading.SMALL)
    assert small.is_good
    (version,) = small.models[0].versions
    assert version.is_loaded is None
    assert version.untried.endswith("--load loads it all the same")
    assert not check(tmp_path, Loading.ALL).is_good


def test_command_fails_for_an_operator_without_a_library(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "good", onnx_models.identity().SerializeToString(), "model.onnx")
    add_model(tmp_path, "tokens", UNKNOWN_OPERATOR.SerializeToString(), "model.onnx")
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path), "--json"])
    assert ended.value.code == 1
    good, tokens = json.loads(capfd.readouterr().out)["models"]
    assert good["versions"][0]["loaded"] is True
    assert tokens["versions"][0]["loaded"] is False
    assert "ai.custom:Tokenize(-1) is not a registered function/op" in tokens["problems"][0]
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path), "--no-load"])
    assert ended.value.code == 0
