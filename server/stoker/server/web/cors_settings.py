"""Which web pages' scripts may read answers: plain data, no library."""

from dataclasses import dataclass
from typing import Final

ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class CorsSettings:
    """Cross-origin resource sharing.

    Attributes:
        origins: Those allowed, as browsers write them (`https://app.example:8443`); `*` alone: any; none: CORS is off.
    """

    origins: frozenset[str] = frozenset()

    @property
    def is_any(self) -> bool:
        """Whether every origin is allowed."""
        return ANY in self.origins

    def allows(self, origin: str) -> bool:
        """Whether pages of `origin` may read answers."""
        return self.is_any or origin in self.origins
