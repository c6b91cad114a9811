"""`RestartPolicy`: when a worker process that has died is started again. Pure: `now_ns` is a parameter.

The pause before a restart doubles with each death (exponential back-off) and begins anew once a process has lived for `STABLE_NS`. An
instance whose processes die `MOST_DEATHS` times within `WINDOW_NS` is ejected: its model is not ready, requests fail at once, and one
restart is tried after a long pause, which doubles too.
"""

from collections import deque
from typing import Final

FIRST_PAUSE_NS: Final = 100_000_000
MAX_PAUSE_NS: Final = 10_000_000_000
MOST_DEATHS: Final = 5
WINDOW_NS: Final = 60_000_000_000
STABLE_NS: Final = 60_000_000_000
FIRST_EJECTION_NS: Final = 60_000_000_000
MAX_EJECTION_NS: Final = 600_000_000_000


class RestartPolicy:
    """The deaths of one instance's processes.

    Attributes:
        deaths: All of them.
        is_ejected: Whether the instance is out of service until a process has lived again.
    """

    def __init__(self) -> None:
        self.deaths = 0
        self.is_ejected = False
        self._recent: deque[int] = deque(maxlen=MOST_DEATHS)
        self._pause_ns = FIRST_PAUSE_NS
        self._ejection_ns = FIRST_EJECTION_NS
        self._started_ns: int | None = None

    def started(self, now_ns: int) -> None:
        """A process has loaded its instance."""
        self._started_ns = now_ns
        self.is_ejected = False

    def recent_deaths(self, now_ns: int) -> int:
        """The deaths within the last `WINDOW_NS`, at most `MOST_DEATHS`."""
        return sum(now_ns - at_ns <= WINDOW_NS for at_ns in self._recent)

    def died(self, now_ns: int) -> int:
        """A process has died, or could not load. Returns the pause before the next start, nanoseconds."""
        self.deaths += 1
        if self._started_ns is not None and now_ns - self._started_ns >= STABLE_NS:
            self._recent.clear()
            self._pause_ns, self._ejection_ns = FIRST_PAUSE_NS, FIRST_EJECTION_NS
        was_probe = self._ejection_ns > FIRST_EJECTION_NS
        self._started_ns = None
        self._recent.append(now_ns)
        is_burst = len(self._recent) == MOST_DEATHS and now_ns - self._recent[0] <= WINDOW_NS
        if is_burst or was_probe:
            self.is_ejected = True
            pause_ns = self._ejection_ns
            self._ejection_ns = min(2 * pause_ns, MAX_EJECTION_NS)
            return pause_ns
        pause_ns = self._pause_ns
        self._pause_ns = min(2 * pause_ns, MAX_PAUSE_NS)
        return pause_ns
