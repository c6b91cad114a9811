"""Converts `--concurrency 1:8:2` and `--request-rate 100:500:100` to the loads to measure, one after the other."""

import math
from dataclasses import dataclass

from stoker.cli.output import CommandFailed, ExitCode

#: Bounds on the levels of one run, and on each kind of load: above these the client would be the bottleneck.
MOST_LEVELS = 64
MOST_CONCURRENT = 4096
MOST_PER_S = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Level:
    """One load.

    Attributes:
        concurrency: Requests in flight at any time (closed loop); None: an open loop.
        rate_per_s: Requests sent a second without waiting for responses (open loop); None: a closed loop.
    """

    concurrency: int | None = None
    rate_per_s: float | None = None


def levels(concurrency: str | None, rate: str | None) -> list[Level]:
    """The loads of the options; a concurrency of 1 by default.

    Raises:
        CommandFailed: both are given, or one is no range.
    """
    if concurrency is not None and rate is not None:
        raise CommandFailed("--concurrency and --request-rate are both given; expected one of them", ExitCode.USAGE)
    if rate is not None:
        return [Level(rate_per_s=each) for each in _range("--request-rate", rate, MOST_PER_S)]
    steps = _range("--concurrency", concurrency or "1", MOST_CONCURRENT)
    if any(not each.is_integer() for each in steps):
        raise CommandFailed(f"--concurrency {concurrency}: expected whole numbers", ExitCode.USAGE)
    return [Level(concurrency=int(each)) for each in steps]


def _range(flag: str, text: str, most: float) -> list[float]:
    """`8`, `1:8`, `1:8:2` (start:end:step, the end included) or `1,2,8`."""
    wrong = CommandFailed(f"{flag} {text}: expected a number, START:END, START:END:STEP or a list such as 1,2,8", ExitCode.USAGE)
    try:
        numbers = [float(part) for part in (text.split(":") if ":" in text else text.split(","))]
    except ValueError:
        raise wrong from None
    if not all(map(math.isfinite, numbers)) or (":" in text and len(numbers) > 3):
        raise wrong
    if min(numbers) <= 0:
        raise CommandFailed(f"{flag} {text}: expected numbers above 0", ExitCode.USAGE)
    if ":" in text:
        start, end, step = (*numbers, 1.0)[:3]
        if end < start:
            raise CommandFailed(f"{flag} {text}: the end is below the start", ExitCode.USAGE)
        span = (end - start) / step + 1e-9
        count = int(min(span, 1e9)) + 1
        if count <= MOST_LEVELS:
            numbers = [start + at * step for at in range(count)]
    else:
        count = len(numbers)
    if count > MOST_LEVELS:
        raise CommandFailed(f"{flag} {text}: {count} levels; expected at most {MOST_LEVELS}", ExitCode.USAGE)
    if max(numbers) > most:
        raise CommandFailed(f"{flag} {text}: expected at most {most:g}", ExitCode.USAGE)
    return numbers
