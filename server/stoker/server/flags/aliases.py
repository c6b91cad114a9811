"""Further names of flags: Triton's, Adlik's and TensorFlow Serving's words for the same things."""

from typing import NamedTuple


class Piece(NamedTuple):
    """A flag whose value is a piece of another flag's.

    Attributes:
        flag: The other flag.
        beginning: What stands before the value there.
    """

    flag: str
    beginning: str


#: By a flag's own name, in its dashed spelling.
ALIASES: dict[str, tuple[str, ...]] = {
    "model-base-path": ("model-repository", "model-store"),
    "repository-poll-secs": ("fs-poll-wait-seconds",),
    "grpc-port": ("port",),
    "http-port": ("rest-api-port",),
    "disable-auto-complete-config": ("strict-model-config",),
    "model-load-retry-count": ("max-num-load-retries",),
}
#: By alias, the flag's own name.
PRIMARY = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
#: Triton's older flags, each of which set one thing.
PIECES = {
    "trace-file": Piece("trace-config", "triton,file="),
    "trace-log-frequency": Piece("trace-config", "triton,log-frequency="),
    "trace-level": Piece("trace-config", "level="),
    "trace-rate": Piece("trace-config", "rate="),
    "trace-count": Piece("trace-config", "count="),
}
