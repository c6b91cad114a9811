import pytest

from stoker.backends.api.errors import (
    ErrorCode,
    ModelLoadError,
    NotFound,
    Overloaded,
    QueueTimeout,
    ServingError,
    Unavailable,
    UnknownModel,
)
from stoker.server.core.limits import Limits
from stoker.server.rpc.status import STATUS, kserve_status, retry_after_seconds


def test_every_error_code_has_a_status():
    assert set(STATUS) == set(ErrorCode)


@pytest.mark.parametrize(
    ("error", "http", "grpc"),
    [
        (UnknownModel("m"), 400, 5),
        (NotFound("m"), 404, 5),
        (Unavailable("m"), 503, 14),
        (Overloaded("m"), 503, 14),
        (QueueTimeout("m"), 503, 14),
        (ModelLoadError("m"), 400, 3),
    ],
)
def test_kserve_clients_get_tritons_status_numbers(error: ServingError, http: int, grpc: int):
    assert kserve_status(error) == (http, grpc)


def test_subclass_of_an_overridden_error_is_overridden_too():
    class FullBucket(Overloaded):
        pass

    assert kserve_status(FullBucket("m")).http == 503


@pytest.mark.parametrize(("given", "said"), [(None, "1"), (0.2, "1"), (1.5, "2"), (30, "30")])
def test_overload_always_has_a_retry_after(given: float | None, said: str):
    assert retry_after_seconds(Overloaded("m", retry_after_s=given)) == said


def test_other_errors_have_a_retry_after_only_if_they_set_it():
    assert retry_after_seconds(Unavailable("m")) is None
    assert retry_after_seconds(Unavailable("m", retry_after_s=4)) == "4"


@pytest.mark.parametrize("bad", [{"json_depth": 0}, {"header_timeout_s": -1.0}, {"grpc_message_bytes": 1 << 31}])
def test_invalid_limits_are_refused_by_name(bad: dict[str, int]):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Limits(**bad)
