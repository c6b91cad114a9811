"""What an operator allows of Triton's extensions; dangerous things are off by default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.server.observability.span_export import Collector
from stoker.server.observability.tracer import TraceSettings
from stoker.server.rpc.restricted_apis import Category, Key


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStart:
    """How requests are traced from the start.

    Attributes:
        file: Where traces go, in mode triton.
        collector: Where they go, in mode opentelemetry. Without either nothing can be traced.
        settings: What is traced until clients change it.
    """

    file: Path | None = None
    collector: Collector | None = None
    settings: TraceSettings = field(default_factory=TraceSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class KServeSettings:
    """Settings of KServe v2's extensions.

    Attributes:
        allow_client_shm: Whether clients may pass tensors in shared memory of this host.
        allow_settings_changes: Whether clients may change log and trace settings; None: as `SettingsChanges` decides.
        trace: Tracing from the start.
        http_restricted, grpc_restricted: By restricted category, the key that calls must bring.
        http_forward_pattern, grpc_forward_pattern: Which headers become parameters, by their whole names; empty: none.
    """

    allow_client_shm: bool = False
    allow_settings_changes: bool | None = None
    trace: TraceStart = field(default_factory=TraceStart)
    http_restricted: Mapping[Category, Key] = field(default_factory=dict)
    grpc_restricted: Mapping[Category, Key] = field(default_factory=dict)
    http_forward_pattern: str = ""
    grpc_forward_pattern: str = ""
