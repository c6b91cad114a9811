"""The settings of the protocols and their flags. Plain data, so that the command line is parsed without importing the protocols."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from stoker.server.core.flag import Panel, milliseconds, one_of, option, path, switch
from stoker.server.observability.span_export import Collector
from stoker.server.observability.tracer import TraceSettings
from stoker.server.rpc.restricted import Category, Key

METRICS_PATH: Final = "/monitoring/prometheus/metrics"
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TfsSettings:
    """Settings of TensorFlow Serving's wire interface.

    Attributes:
        rest_timeout_s: How long a REST request may take, from its complete body to its response; None: no limit.
        allow_reload: Whether HandleReloadConfigRequest is allowed.
        metrics_path: The path of the metrics with TensorFlow Serving's names; None: there is none.
    """

    rest_timeout_s: Annotated[
        float | None,
        milliseconds("rest-api-timeout-in-ms", 1, _DAY_MS, panel=Panel.TENSORFLOW, text="Bound on the time of a REST request."),
    ] = None
    allow_reload: Annotated[
        bool,
        switch("allow-model-reload", panel=Panel.TENSORFLOW, text="Let clients replace the list of models (HandleReloadConfigRequest)."),
    ] = False
    metrics_path: str | None = METRICS_PATH


class RestV1(StrEnum):
    """The protocol of the REST routes below /v1: TensorFlow Serving and Adlik use the same two URLs."""

    AUTO = "auto"
    """Told from each request; see `rest_choice`."""
    ADLIK = "adlik"
    TFS = "tfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdlikSettings:
    """Settings of Adlik's wire interface.

    Attributes:
        prefer_adlik: Whether Adlik is the default protocol under `auto`, for models of any platform.
        operate_root: The root folder of clients' paths; None: paths are rejected.
    """

    rest_v1: Annotated[
        RestV1, one_of("rest-v1", RestV1, panel=Panel.NETWORK, text="REST protocol of /v1: auto (by the request), adlik or tfs.")
    ] = RestV1.AUTO
    prefer_adlik: Annotated[
        bool, switch("prefer-adlik", panel=Panel.NETWORK, text="With --rest-v1=auto, return Adlik's form of /v1 metadata for every model.")
    ] = False
    allow_operate: Annotated[
        bool, switch("allow-model-operate", panel=Panel.NETWORK, text="Let Adlik's ModelOperateService change the repository.")
    ] = False
    operate_root: Annotated[
        Path | None,
        path("model-operate-root", panel=Panel.NETWORK, text="Folder that must contain the paths of ModelOperateService requests."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStart:
    """The tracing settings of the server's start.

    Attributes:
        file: The trace file of mode triton.
        collector: The collector of mode opentelemetry. Without file and collector there is no tracing.
        settings: The trace settings until clients change them.
    """

    file: Path | None = None
    collector: Collector | None = None
    settings: TraceSettings = field(default_factory=TraceSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class KServeSettings:
    """Settings of KServe v2's extensions.

    Attributes:
        allow_settings_changes: None: as `SettingsChanges` decides.
        trace: The tracing settings of the server's start.
        http_restricted, grpc_restricted: The key of each restricted category.
        http_forward_pattern, grpc_forward_pattern: Patterns of the forwarded headers' whole names; empty: none.
    """

    allow_client_shm: Annotated[
        bool, switch("allow-client-shm", panel=Panel.KSERVE, text="Let clients pass tensors in POSIX shared memory of this host.")
    ] = False
    allow_settings_changes: Annotated[
        bool | None,
        switch(
            "allow-settings-changes",
            panel=Panel.KSERVE,
            text="Let clients change log and trace settings (default: on loopback addresses, or by a key).",
        ),
    ] = None
    trace: TraceStart = field(default_factory=TraceStart)
    http_restricted: Mapping[Category, Key] = field(default_factory=dict)
    grpc_restricted: Mapping[Category, Key] = field(default_factory=dict)
    http_forward_pattern: Annotated[
        str,
        option(
            "http-header-forward-pattern",
            metavar="REGEX",
            panel=Panel.KSERVE,
            text="Forward HTTP headers with matching names as request parameters.",
        ),
    ] = ""
    grpc_forward_pattern: Annotated[
        str,
        option(
            "grpc-header-forward-pattern",
            metavar="REGEX",
            panel=Panel.KSERVE,
            text="Forward gRPC metadata with matching names as request parameters.",
        ),
    ] = ""
