"""How fast a request arrives, and when its client is too slow."""

from stoker.server.core.limits import Limits
from stoker.server.net.progress import Progress

LIMITS = Limits(body_idle_timeout_s=10.0, body_bytes_per_s=1000, body_timeout_s=100.0)


def trickle(progress: Progress, *, since_s: int, until_s: int, bytes_each: int) -> str | None:
    """One piece every second; the error at the first check that finds it."""
    for second in range(since_s, until_s):
        progress.note(bytes_each, float(second))
        if (wrong := progress.slowness(second + 0.5)) is not None:
            return wrong
    return None


def test_early_bytes_do_not_excuse_later_slowness():
    progress = Progress(LIMITS, 0.0)
    progress.note(128 << 20, 0.5)
    assert trickle(progress, since_s=1, until_s=31, bytes_each=1) == "the body comes slower than 1000 bytes a second"


def test_constant_rate_is_accepted_until_the_body_timeout():
    progress = Progress(LIMITS, 0.0)
    assert trickle(progress, since_s=0, until_s=99, bytes_each=1000) is None
    assert trickle(progress, since_s=99, until_s=110, bytes_each=10_000) == "the body takes longer than 100 s"


def test_stall_shorter_than_the_idle_timeout_is_accepted():
    progress = Progress(LIMITS, 0.0)
    assert trickle(progress, since_s=0, until_s=5, bytes_each=5000) is None
    assert progress.slowness(14.0) is None
    assert trickle(progress, since_s=14, until_s=40, bytes_each=2000) is None


def test_idle_timeout_ends_the_request():
    progress = Progress(LIMITS, 0.0)
    progress.note(1 << 20, 1.0)
    assert progress.slowness(10.9) is None
    assert progress.slowness(11.1) == "no further byte of the body within 10 s"


def test_time_without_reading_does_not_count_against_the_client():
    progress = Progress(LIMITS, 0.0)
    progress.note(1000, 1.0)
    for second in range(2, 60):
        progress.pause(float(second))
        assert progress.slowness(float(second)) is None
    assert progress.slowness(60.0) is None
    assert progress.rate(59.5) is None


def test_rate_is_that_of_the_last_seconds():
    progress = Progress(LIMITS, 0.0)
    assert progress.rate(0.5) is None
    for tenth in range(40):
        progress.note(100_000, tenth / 10)
    assert progress.rate(4.0) == 1_000_000
    for second in range(4, 8):
        progress.note(1, float(second))
    assert (progress.rate(8.0) or 0) < 10
