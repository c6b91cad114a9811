import logging
from pathlib import Path

import pytest

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.lifecycle.processes import LINES_PER_S, ModelOutput

REQUEST = LoadRequest(
    model_name="m", version=2, files=ModelFiles(Path(), {}), model_filename="", signature=ModelSignature((), (), 0), instance_name="m_0"
)


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("a line", logging.INFO, "a line"),
        ("INFO a line", logging.INFO, "a line"),
        ("WARNING a line", logging.WARNING, "a line"),
        ("ERROR a line", logging.ERROR, "a line"),
        ("CRITICAL a line", logging.ERROR, "a line"),
        ("WARNING", logging.INFO, "WARNING"),
        ("WARNING: a line", logging.INFO, "WARNING: a line"),
    ],
)
def test_line_of_a_model_is_logged_with_its_level(line: str, level: int, text: str, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="stoker.model"):
        ModelOutput(REQUEST, FakeClock())([line], 0)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (level, text)
    assert (record.__dict__["model"], record.__dict__["version"], record.__dict__["instance"]) == ("m", 2, "m_0")


def test_lines_of_a_second_are_bounded(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="stoker.model"):
        ModelOutput(REQUEST, FakeClock())(["line"] * (3 * LINES_PER_S), 0)
    assert 0 < len(caplog.records) <= 2 * LINES_PER_S
