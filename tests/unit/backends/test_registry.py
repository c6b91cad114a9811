import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint

import pytest

from stoker.backends.api.errors import BackendSettingError, ModelLoadError
from stoker.backends.api.registry import GROUP, BackendRegistry
from stoker.backends.testing.fake_backend import FakeBackend


class NotABackend:
    pass


class SlowToStart(FakeBackend):
    """Holds its first caller until a second one has arrived, or waits for the registry's lock."""

    def __init__(self) -> None:
        super().__init__()
        threading.Event().wait(0.05)


class RaisesAtStart(FakeBackend):
    def __init__(self) -> None:
        raise RuntimeError("no device driver")


def registry(monkeypatch: pytest.MonkeyPatch, **points: str) -> BackendRegistry:
    found = [EntryPoint(name, value, GROUP) for name, value in points.items()]
    monkeypatch.setattr("stoker.backends.api.registry.entry_points", lambda *, group: found if group == GROUP else [])
    return BackendRegistry()


def test_installed_backends_are_found_by_name_alias_and_platform() -> None:
    installed = BackendRegistry()
    assert {"identity", "onnxruntime"} <= set(installed.names())
    assert installed.get("onnxruntime") is installed.get("onnx") is installed.get("onnxruntime_onnx")
    assert [backend.name for backend in installed.all()] == installed.names()


def test_platform_lookup_imports_no_other_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry(monkeypatch, another=f"{__name__}:RaisesAtStart", fake="stoker.backends.testing.fake_backend:FakeBackend")
    assert found.get("fake_platform") is found.get("fake_alias")
    assert [backend.name for backend in found.in_use()] == ["fake"]
    with pytest.raises(ModelLoadError, match="installed backends: another, fake"):
        found.get("no_such_platform")
    with pytest.raises(ModelLoadError, match="no device driver"):
        found.get("another")


def test_given_backends_replace_the_installed_ones() -> None:
    backend = FakeBackend()
    given = BackendRegistry((backend,))
    assert given.names() == ["fake"]
    assert [given.get(name) for name in ("fake", "fake_alias", "fake_platform")] == [backend] * 3


def test_unknown_backend_error_lists_the_installed_ones() -> None:
    with pytest.raises(ModelLoadError, match="no backend or platform 'tensorrt'; installed backends: fake"):
        BackendRegistry((FakeBackend(),)).get("tensorrt")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_module_anywhere:Backend", "No module named 'no_such_module_anywhere'"),
        ("stoker.backends.testing.fake_backend:NoSuchClass", "NoSuchClass"),
        (f"{__name__}:NotABackend", "is no Backend"),
        (f"{__name__}:RaisesAtStart", "RuntimeError: no device driver"),
        ("stoker.backends.testing.fake_backend:FakeBackend", "calls itself 'fake'"),
    ],
)
def test_backend_that_fails_to_import_is_named_and_affects_no_other(monkeypatch: pytest.MonkeyPatch, value: str, text: str) -> None:
    found = registry(monkeypatch, broken=value, fake="stoker.backends.testing.fake_backend:FakeBackend")
    assert [backend.name for backend in found.all()] == ["fake"]
    assert found.names() == ["broken", "fake"]
    with pytest.raises(ModelLoadError, match="backend 'broken' is not usable here") as caught:
        found.get("broken")
    assert text in caught.value.message


def test_backend_is_imported_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry(monkeypatch, broken="no_such_module_anywhere:Backend", fake="stoker.backends.testing.fake_backend:FakeBackend")
    assert isinstance(found.get("fake"), FakeBackend)
    assert "broken" in found.names()


def test_models_that_load_concurrently_all_find_their_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = registry(monkeypatch, fake=f"{__name__}:SlowToStart")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: asked.get("fake_platform"), range(4)))
    assert len({id(backend) for backend in found}) == 1


class Configurable(FakeBackend):
    def __init__(self) -> None:
        super().__init__()
        self.settings: Mapping[str, str] = {}

    def configure(self, settings: Mapping[str, str]) -> None:
        self.settings = settings


def test_settings_reach_their_backend_by_name_or_alias() -> None:
    backend = Configurable()
    BackendRegistry((backend,)).configure({"fake_alias": {"devices": "4"}})
    assert backend.settings == {"devices": "4"}


def test_settings_under_several_spellings_are_merged() -> None:
    backend = Configurable()
    BackendRegistry((backend,)).configure({"fake_alias": {"devices": "4"}, "fake": {"pacing": "none"}})
    assert backend.settings == {"devices": "4", "pacing": "none"}
    with pytest.raises(BackendSettingError, match="backend 'fake': 'devices' is given twice, once for 'fake'"):
        BackendRegistry((backend,)).configure({"fake_alias": {"devices": "4"}, "fake": {"devices": "2"}})


def test_settings_for_a_missing_backend_or_one_without_settings_are_refused_by_name() -> None:
    with pytest.raises(BackendSettingError, match="no backend or platform 'tensorrt'; installed backends: fake"):
        BackendRegistry((FakeBackend(),)).configure({"tensorrt": {"devices": "4"}})
    with pytest.raises(BackendSettingError, match="backend 'fake' has no settings, so 'devices' is none of them"):
        BackendRegistry((FakeBackend(),)).configure({"fake": {"devices": "4"}})
