"""States of a model version, and what the index says of it."""

import enum
from dataclasses import dataclass


class VersionState(enum.Enum):
    """Life of one loaded (or failed) version: NEW -> LOADING -> READY -> DRAINING -> UNLOADED, or LOADING -> FAILED."""

    NEW = "NEW"
    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"
    UNLOADED = "UNLOADED"
    FAILED = "FAILED"

    @property
    def triton_name(self) -> str:
        """The state's name in Triton's repository index."""
        return _TRITON[self]


_TRITON = {
    VersionState.NEW: "LOADING",
    VersionState.LOADING: "LOADING",
    VersionState.READY: "READY",
    VersionState.DRAINING: "UNLOADING",
    VersionState.UNLOADED: "UNAVAILABLE",
    VersionState.FAILED: "UNAVAILABLE",
}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the repository index.

    Attributes:
        name: Model name.
        version: Version number; None where the model was never loaded or has no readable version.
        state: None as for `version`.
        reason: Why it is not READY, or why its last reload failed while it goes on serving; empty otherwise.
        backend: The backend's name; empty where unknown.
    """

    name: str
    version: int | None
    state: VersionState | None
    reason: str = ""
    backend: str = ""
