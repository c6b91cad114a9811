"""The tracebacks of failures, as the log shows them."""

from pathlib import Path

import pytest

from stoker.backends.api.batch import as_failure
from stoker.backends.api.errors import BackendFailed, LogLines, ServingError
from stoker.backends.worker.batches import error_from_json, error_to_json

STOKER = "/site-packages/stoker/backends/python/typed_model.py"


def raised(files: list[str], error: str) -> BaseException:
    """The exception of code whose calls go through `files`."""
    variables: dict[str, object] = {"BackendFailed": BackendFailed}
    call = f"raise {error}"
    for number, file in enumerate(reversed(files)):
        exec(compile(f"def call_{number}():\n    {call}", file, "exec"), variables)
        call = f"call_{number}()"
    try:
        exec(compile(call, STOKER, "exec"), variables)
    except Exception as caught:
        return caught
    raise AssertionError


def crossed(error: BaseException, *folders: Path) -> ServingError:
    """The error as it arrives in the server."""
    return error_from_json(error_to_json(error, folders))


def lines(error: ServingError) -> tuple[str, ...]:
    assert isinstance(error.__cause__, LogLines)
    return error.__cause__.lines


def test_exception_of_a_model_has_its_frames_with_relative_paths_and_none_of_stoker():
    error = crossed(
        raised([STOKER, "/private/1/model.py", "/lib/numpy.py"], "ValueError('no row in /private/1/data.csv')"), Path("/private/1")
    )
    assert error.is_of_model
    assert lines(error)[0] == "Traceback (most recent call last):"
    assert [line for line in lines(error) if "File" in line and "test_tracebacks" not in line] == [
        '  File "model.py", line 2, in call_1',
        '  File "/lib/numpy.py", line 2, in call_0',
    ]
    assert lines(error)[-1] == "ValueError: no row in data.csv"


def test_exception_without_a_frame_of_the_model_keeps_all_frames():
    error = crossed(raised([STOKER, "/lib/numpy.py"], "ValueError('no row')"), Path("/private/1"))
    assert not error.is_of_model
    assert sum(STOKER in line for line in lines(error)) == 2


def test_failed_check_of_stoker_has_no_traceback():
    error = crossed(raised([STOKER], "BackendFailed('another shape')"), Path("/private/1"))
    assert (error.message, error.__cause__, error.is_of_model) == ("another shape", None, False)


def test_exception_that_led_to_another_is_shown_with_relative_paths():
    try:
        raise KeyError("outer") from raised(["/private/1/inner.py"], "ValueError('inner')")
    except KeyError as caught:
        error = crossed(as_failure(caught), Path("/private/1"))
    assert '  File "inner.py", line 2, in call_0' in lines(error)
    assert error.is_of_model


@pytest.mark.parametrize("value", [1, "True", None])
def test_damaged_mark_of_the_model_is_none(value: object):
    described = error_to_json(BackendFailed("m")) | {"is_of_model": value}
    assert error_from_json(described).is_of_model is False
