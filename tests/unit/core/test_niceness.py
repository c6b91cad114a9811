import logging
import os
import threading

import pytest

from stoker.server.core.tasks import raise_niceness


def test_nice_of_zero_makes_no_system_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("changed something"))
    raise_niceness(0)


def test_niceness_is_unchanged_on_systems_other_than_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("changed something"))
    raise_niceness(5)


@pytest.mark.parametrize(("here", "steps", "value"), [(0, 5, 5), (10, 5, 15), (15, 10, 19), (-5, 3, -2)])
def test_niceness_is_relative_to_the_threads_own(here: int, steps: int, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(os, "getpriority", lambda *_: here)
    monkeypatch.setattr(os, "setpriority", lambda *each: asked.append(each))
    raise_niceness(steps)
    assert asked == [(os.PRIO_PROCESS, threading.get_native_id(), value)]


def test_sandbox_that_refuses_niceness_is_logged_and_the_model_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(os, "setpriority", refuse)
    with caplog.at_level(logging.WARNING, "stoker.execution"):
        raise_niceness(5)
    assert [record.getMessage() for record in caplog.records] == ["nice is without effect here: Operation not permitted"]
