"""Log settings as clients see them: Triton's names and texts, all or nothing, and never the file."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.api.errors import InvalidRequest, ServingError, Unsupported
from stoker.server.observability.logs import configure
from stoker.server.observability.settings import LogSettings
from stoker.server.protocols.kserve.dynamic_settings import LogControl

INITIAL = {"log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0, "log_format": "default"}


class FakeLogs:
    """Records the settings it was given."""

    def __init__(self, settings: LogSettings | None = None) -> None:
        self.is_json = False
        self.settings = settings or LogSettings(format="text")

    def change(self, settings: LogSettings) -> None:
        self.settings = settings


def test_settings_are_tritons_fields_in_tritons_order():
    assert list(LogControl(FakeLogs()).read().items()) == list(INITIAL.items())
    assert LogControl(FakeLogs(LogSettings(file=Path("/var/log/x")))).read()["log_file"] == "/var/log/x"


@pytest.mark.parametrize(
    ("name", "value"),
    [("log_info", False), ("log_warning", False), ("log_error", False), ("log_verbose_level", 3), ("log_format", "ISO8601")],
)
def test_each_setting_changes_alone(name: str, value: Any):
    control = LogControl(FakeLogs())
    control.update({name: value})
    assert control.read() == {**INITIAL, name: value}
    control.update({name: None})
    assert control.read() == {**INITIAL, name: value}


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"log_file": "/etc/passwd"}, Unsupported, "log file location can not be updated through network protocol"),
        ({"log_file": ""}, Unsupported, "log file location can not be updated through network protocol"),
        ({"log_info": 0}, InvalidRequest, "expect boolean for 'log_info'"),
        ({"log_error": "true"}, InvalidRequest, "expect boolean for 'log_error'"),
        ({"log_verbose_level": True}, InvalidRequest, "expect int32 for 'log_verbose_level'"),
        ({"log_verbose_level": -1}, InvalidRequest, "expect int32 for 'log_verbose_level'"),
        ({"log_verbose_level": 1 << 32}, InvalidRequest, "expect int32 for 'log_verbose_level'"),
        ({"log_format": 1}, InvalidRequest, "expect string for 'log_format'"),
        ({"log_format": "xml"}, InvalidRequest, "invalid argument for log_format, got: xml"),
        ({"log_level": 1}, InvalidRequest, "unknown log setting 'log_level'"),
    ],
)
def test_invalid_setting_changes_nothing(given: dict[str, Any], kind: type[ServingError], text: str):
    logs = FakeLogs()
    with pytest.raises(kind, match=text):
        LogControl(logs).update({"log_info": False, **given} if "log_info" not in given else given)
    assert LogControl(logs).read() == INITIAL


def test_changes_apply_to_the_following_lines():
    stream = io.StringIO()
    log = logging.getLogger("stoker.somewhere")
    with configure(LogSettings(format="text"), stream=stream) as logs:
        control = LogControl(logs)
        log.info("first")
        log.debug("too fine")
        control.update({"log_info": False, "log_verbose_level": 1, "log_format": "json"})
        log.info("not wanted")
        log.debug("fine")
        log.warning("still wanted")
        control.update({"log_warning": False, "log_verbose_level": 0})
        log.warning("not wanted either")
        log.error("always")
        logs.flush()
        assert logs.settings == LogSettings(format="json", info=False, warning=False)
    first, change, *objects = stream.getvalue().splitlines()
    assert first.endswith("first")
    assert "a client changes log settings" in change
    # The line about a change is logged before the change applies: no client switches lines off unseen.
    messages = [json.loads(line)["message"] for line in objects]
    assert messages == ["fine", "still wanted", "a client changes log settings", "always"]
