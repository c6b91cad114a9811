"""What to do when no device is free."""

import enum
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
        if not self.timeout_s >= 0 or not self.sleep_s > 0:
            raise ValueError(f"waiting for a device needs timeout_s >= 0 and sleep_s > 0, not {self.timeout_s} and {self.sleep_s}")
