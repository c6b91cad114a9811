"""The flags of the rate limiter, in Triton's spelling."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from stoker.server.core.flag import FlagError, Panel, one_of, option
from stoker.server.scheduling.rate_limiter import RateLimitSettings

#: The largest count of a resource, and the largest number of a device.
_MOST: Final = (1 << 32) - 1


class RateLimit(StrEnum):
    """Values of `--rate-limit`."""

    OFF = "off"
    EXECUTION_COUNT = "execution_count"


@dataclass(frozen=True, kw_only=True)
class RateLimitFlags:
    """The rate limiter."""

    rate_limit: Annotated[
        RateLimit,
        one_of(
            "rate-limit",
            RateLimit,
            panel=Panel.SERVING,
            text="off: instances run as soon as they can. execution_count: they wait for the resources of their rate_limiter.",
        ),
    ] = RateLimit.OFF
    rate_limit_resource: Annotated[
        list[str] | None,
        option(
            "rate-limit-resource",
            metavar="NAME:COUNT[:DEVICE]",
            panel=Panel.SERVING,
            text="Available count of a resource (default: the largest that an instance needs); may be repeated.",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: a resource has another form or is given twice.
        """
        is_on = self.rate_limit is RateLimit.EXECUTION_COUNT
        pieces = self.rate_limit_resource or []
        settings = RateLimitSettings(is_on=is_on, resources=resources(pieces))
        if pieces and not is_on:
            return {"notices": ("--rate-limit-resource has no effect without --rate-limit=execution_count",)}
        return {"rate_limit": settings}


def resources(pieces: Sequence[str]) -> dict[tuple[int | None, str], int]:
    """The counts of the values of the flag, by device (None: all) and name.

    Raises:
        FlagError: a value has another form, or names the same resource as another one.
    """
    found: dict[tuple[int | None, str], int] = {}
    for piece in pieces:
        name, *numbers = piece.split(":")
        if not name or not 1 <= len(numbers) <= 2 or not all(_is_number(number) for number in numbers):
            raise FlagError(f"--rate-limit-resource={piece}: expected NAME:COUNT or NAME:COUNT:DEVICE with whole numbers from 0 up")
        place = (int(numbers[1]) if len(numbers) == 2 else None, name)
        if place in found:
            raise FlagError(f"--rate-limit-resource={piece}: the resource is given twice")
        found[place] = int(numbers[0])
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _MOST
