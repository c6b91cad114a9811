"""`DeviceWaitConfig` with the vendor's argument names."""

import datetime

from stoker.backends.ipu.runtime import DeviceWaitConfig as OurConfig
from stoker.backends.ipu.runtime import DeviceWaitStrategy

#: Seconds, or what Python has for a time.
Seconds = float | datetime.timedelta


def DeviceWaitConfig(  # noqa: N802 - stands for the vendor's class
    strategy: DeviceWaitStrategy = DeviceWaitStrategy.NO_WAIT,
    timeout: Seconds = 0.0,
    sleepTime: Seconds = 15.0,  # noqa: N803 - the vendor's argument
) -> OurConfig:
    """The behaviour when no device is free; times in seconds or as `timedelta`."""
    return OurConfig(strategy=strategy, timeout_s=_seconds(timeout), sleep_s=_seconds(sleepTime))


def _seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, datetime.timedelta) else float(value)
