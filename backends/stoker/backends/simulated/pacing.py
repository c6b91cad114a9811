"""How long a simulated device takes: as long as the host needs, as long as the model says, or so on a simulated clock.

`Timeline` keeps when a device is free; `Pacer` makes the moments of such a timeline true.
"""

import enum
import threading
from collections.abc import Callable

from stoker.backends.simulated.clocks import NS_PER_S, VirtualClock, WaitableClock


class Pacing(enum.Enum):
    """The effect of the modelled time on a run."""

    NONE = "none"
    """As fast as the host computes."""
    REALTIME = "realtime"
    """A batch takes as long as the model says; longer where the host is slower."""
    VIRTUAL = "virtual"
    """Modelled time passes on the simulation's clock, none on the machine's."""


class Timeline:
    """When one simulated device is free. Confined to: whoever holds the device.

    Attributes:
        free_at_ns: The end of the last reservation.
        busy_ns: All reserved time together.
    """

    #: A host that comes this late to work which was already there is not the device's fault: the timeline then closes the gap, so that the
    #: inexact waking of threads does not add up to a lower throughput.
    SLACK_NS = 2_000_000

    def __init__(self) -> None:
        self.free_at_ns = 0
        self.busy_ns = 0

    def reserve(self, duration_ns: int, *, now_ns: int, was_waiting: bool) -> int:
        """Takes the device for `duration_ns` and returns the moment at which that begins.

        Args:
            duration_ns: How long the device is taken.
            now_ns: The present.
            was_waiting: Whether the work was there before the device was free, so that it begins without a gap (but for a late host).
        """
        begins_ns = max(self.free_at_ns, now_ns)
        if was_waiting and now_ns - self.free_at_ns <= self.SLACK_NS:
            begins_ns = self.free_at_ns
        self.free_at_ns = begins_ns + duration_ns
        self.busy_ns += duration_ns
        return begins_ns


class Pacer:
    """Waits for moments of a device's timeline, in the way `pacing` says."""

    def __init__(self, clock: WaitableClock, pacing: Pacing) -> None:
        """Waits on `clock`.

        Raises:
            ValueError: virtual pacing was asked for on a clock that does not move by itself or by its devices.
        """
        if pacing is Pacing.VIRTUAL and not isinstance(clock, VirtualClock):
            raise ValueError(f"pacing 'virtual' needs a VirtualClock, not {type(clock).__name__}")
        self.clock = clock
        self.pacing = pacing

    def wait_until(self, moment_ns: int, condition: threading.Condition, is_stopped: Callable[[], bool]) -> bool:
        """Returns once the moment has come; False if `is_stopped` became true before (whoever stops it notifies `condition`)."""
        if self.pacing is Pacing.REALTIME:
            with condition:
                while not is_stopped() and self.clock.now_ns() < moment_ns:
                    self.clock.wait(condition, moment_ns)
        elif self.pacing is Pacing.VIRTUAL and isinstance(self.clock, VirtualClock):
            self.clock.advance_to(moment_ns)
        return not is_stopped()

    def occupy(self, duration_s: float) -> None:
        """Takes `duration_s` from now on; cannot be stopped."""
        self.wait_until(self.clock.now_ns() + round(duration_s * NS_PER_S), threading.Condition(), lambda: False)
