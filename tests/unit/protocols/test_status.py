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


def test_every_code_of_the_taxonomy_has_a_status():
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
def test_kserve_clients_get_tritons_numbers(error: ServingError, http: int, grpc: int):
    assert kserve_status(error) == (http, grpc)


def test_a_subclass_of_an_overridden_error_is_overridden_too():
    class FullBucket(Overloaded):
        pass

    assert kserve_status(FullBucket("m")).http == 503


@pytest.mark.parametrize(("given", "said"), [(None, "1"), (0.2, "1"), (1.5, "2"), (30, "30")])
def test_an_overload_always_says_when_to_come_back(given: float | None, said: str):
    assert retry_after_seconds(Overloaded("m", retry_after_s=given)) == said


def test_other_errors_say_so_only_if_they_know():
    assert retry_after_seconds(Unavailable("m")) is None
    assert retry_after_seconds(Unavailable("m", retry_after_s=4)) == "4"


@pytest.mark.parametrize("bad", [{"json_depth": 0}, {"header_timeout_s": -1.0}, {"grpc_message_bytes": 1 << 31}])
def test_limits_without_meaning_are_refused_by_name(bad: dict[str, int]):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Limits(**bad)
