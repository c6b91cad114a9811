"""What to do when no device is free."""

import enum
import math
from dataclasses import dataclass


class DeviceWaitStrategy(enum.Enum):
    """Whether to wait for a device."""

    NO_WAIT = "NO_WAIT"
    WAIT_WITH_TIMEOUT = "WAIT_WITH_TIMEOUT"
    WAIT_FOREVER = "WAIT_FOREVER"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWaitConfig:
    """How to wait for a device.

    Attributes:
        strategy: Whether, and how long.
        timeout_s: For `WAIT_WITH_TIMEOUT`.
        sleep_s: Longest pause between two tries; a device released in this process is noticed at once.
    """

    strategy: DeviceWaitStrategy = DeviceWaitStrategy.NO_WAIT
    timeout_s: float = 0.0
    sleep_s: float = 15.0

    def __post_init__(self) -> None:
        if not 0 <= self.timeout_s < math.inf or not 0 < self.sleep_s < math.inf:
            raise ValueError(
                f"waiting for a device needs a finite timeout_s >= 0 and sleep_s > 0, not {self.timeout_s} and {self.sleep_s}; "
                "WAIT_FOREVER has no timeout"
            )
