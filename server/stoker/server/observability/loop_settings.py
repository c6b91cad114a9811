"""What counts as a blocked event loop, and what follows."""

from dataclasses import dataclass
from typing import Final

#: Between two beats, at most, seconds.
LONGEST_BEAT_S: Final = 0.25
#: The shortest silence that differs from an ordinary turn of the loop, seconds.
LEAST_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopWatchSettings:
    """What counts as a blocked loop.

    Attributes:
        block_s: Seconds without a beat after which stacks are written and a block is counted; 0: neither.
        abort_s: Seconds without a beat after which the process is ended by SIGABRT; 0: never.
    """

    block_s: float = 1.0
    abort_s: float = 0.0

    @property
    def beat_s(self) -> float:
        """Between two beats."""
        return min([LONGEST_BEAT_S, *(each / 4 for each in (self.block_s, self.abort_s) if each)])
