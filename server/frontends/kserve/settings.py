"""What an operator allows of Triton's extensions; dangerous things are off by default."""

from dataclasses import dataclass, field
from pathlib import Path

from server.observability.tracer import TraceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStart:
    """How requests are traced from the start.

    Attributes:
        file: Where traces go; None: nothing can be traced.
        settings: What is traced until clients change it.
    """

    file: Path | None = None
    settings: TraceSettings = field(default_factory=TraceSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class KServeSettings:
    """Settings of KServe v2's extensions.

    Attributes:
        allow_client_shm: Whether clients may pass tensors in shared memory of this host.
        trace: Tracing from the start.
    """

    allow_client_shm: bool = False
    trace: TraceStart = field(default_factory=TraceStart)
