"""`ServerConfig`: all settings of a server, as `stoker.server.flags` reads them from the command line and the environment.

A setting is declared once: a field with its flag, here or in the settings of the package that uses it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from stoker.server.caching.settings import CacheSettings
from stoker.server.core.flag import Panel, duration, one_of, option, path, switch
from stoker.server.core.limits import Limits
from stoker.server.lifecycle.settings import LifecycleSettings, LoaderSettings, read_config_name
from stoker.server.net.settings import SocketSettings, TlsSettings
from stoker.server.observability.settings import AccessLogSettings, LogSettings, LoopWatchSettings, MetricsSettings
from stoker.server.protocols.settings import AdlikSettings, KServeSettings, TfsSettings
from stoker.server.rpc.settings import GrpcSettings
from stoker.server.scheduling.rate_limiter import RateLimitSettings
from stoker.server.tuning.constants import TuningSettings
from stoker.server.web.settings import ConsoleMode, CorsSettings, HttpFront


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStart:
    """Settings from TensorFlow Serving's flags.

    Attributes:
        model_name: The only model, whose folder is the first repository; None: repositories hold model folders.
        model_config_file: The file with the list of models; None: there is none.
        config_poll_s: Seconds between checks of the list; None: the list is read once.
        enable_batching: Whether models without `dynamic_batching` are batched as in `batching_file`.
        batching_file: None: TensorFlow Serving's defaults.
        monitoring_file: None: metrics have their default path.
        reload_root: The folder below which a client's list may name further folders.
    """

    model_name: str | None = None
    model_config_file: Path | None = None
    config_poll_s: float | None = None
    enable_batching: Annotated[
        bool,
        switch(
            "enable-batching",
            panel=Panel.TENSORFLOW,
            text="Batch models without their own batching settings, by --batching-parameters-file.",
        ),
    ] = False
    batching_file: Annotated[
        Path | None, path("batching-parameters-file", panel=Panel.TENSORFLOW, text="A BatchingParameters file in text format.")
    ] = None
    monitoring_file: Annotated[
        Path | None,
        path("monitoring-config-file", panel=Panel.TENSORFLOW, text="A MonitoringConfig file: enables metrics and sets their path."),
    ] = None
    reload_root: Annotated[
        Path | None, path("model-reload-root", panel=Panel.TENSORFLOW, text="Folder that must contain the new folders in a client's list.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """A server's settings.

    Attributes:
        repositories: Model repository roots.
        paths: Model files and folders to serve beside the repositories.
        follows_links: Whether links in a repository are followed to targets below its root.
        has_namespaces: Whether each repository is a namespace of its models.
        grpc_address, http_address, metrics_address: Addresses to bind.
        grpc_port, http_port: Ports; 0: any free one; None: the frontend is off.
        metrics_port: A separate port for /metrics; None: only the HTTP port serves /metrics.
        metrics_on_http: Whether the HTTP port serves /metrics.
        api_key: The bearer token that every call except health checks must have, on every port; None: no key is required.
        cache: The response cache.
        rate_limit: The rate limiter.
        backend_settings: The settings of each backend, by its name.
        notices: Lines to log at start: flags without effect, and warnings.
    """

    repositories: tuple[Path, ...]
    config_name: Annotated[
        str | None,
        option(
            "model-config-name",
            metavar="NAME",
            panel=Panel.MODELS,
            parser=read_config_name,
            text="Instead of config.pbtxt, read configs/NAME.pbtxt of models that have it.",
        ),
    ] = None
    follows_links: bool = False
    has_namespaces: Annotated[
        bool,
        switch("model-namespacing", panel=Panel.MODELS, text="Models of one name in several repositories are all served: see the manual."),
    ] = False
    paths: tuple[Path, ...] = ()
    lifecycle: LifecycleSettings = field(default_factory=LifecycleSettings)
    loader: LoaderSettings = field(default_factory=LoaderSettings)
    grpc_address: str = "127.0.0.1"
    http_address: str = "127.0.0.1"
    metrics_address: str = "127.0.0.1"
    grpc_port: int | None = 8500
    http_port: int | None = 8501
    metrics_port: int | None = None
    metrics_on_http: bool = True
    grpc_reflection: Annotated[bool, switch("grpc-reflection", panel=Panel.NETWORK, text="Offer gRPC server reflection.")] = False
    http_front: Annotated[
        HttpFront, one_of("http-front", HttpFront, panel=Panel.NETWORK, text="HTTP implementation: stoker (built-in HTTP/1.1) or uvicorn.")
    ] = HttpFront.STOKER
    console: Annotated[
        ConsoleMode,
        one_of(
            "console",
            ConsoleMode,
            panel=Panel.NETWORK,
            text="Console for browsers at /ui. auto: if only this machine reaches the HTTP port. on or off: always or never.",
        ),
    ] = ConsoleMode.AUTO
    ready_file: Annotated[
        Path | None, path("ready-file", panel=Panel.NETWORK, text="File to write the bound addresses to, as JSON, once ready.")
    ] = None
    sockets: SocketSettings = field(default_factory=SocketSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    api_key: str | None = field(default=None, repr=False)
    cors: CorsSettings = field(default_factory=CorsSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    kserve: KServeSettings = field(default_factory=KServeSettings)
    adlik: AdlikSettings = field(default_factory=AdlikSettings)
    tfs: TfsSettings = field(default_factory=TfsSettings)
    serving_start: ServingStart = field(default_factory=ServingStart)
    server_id: Annotated[str, option("id", panel=Panel.SERVING, text="Server name that clients see.")] = "stoker"
    shutdown_delay_s: Annotated[
        float,
        duration(
            "shutdown-delay-secs",
            0,
            3600,
            panel=Panel.SERVING,
            text="After SIGTERM, time to keep serving while not ready, before the drain.",
        ),
    ] = 0.0
    exit_timeout_s: Annotated[
        float, duration("exit-timeout-secs", 0, 86400, panel=Panel.SERVING, text="Time for requests in flight to complete after SIGTERM.")
    ] = 30.0
    rate_limit: RateLimitSettings = field(default_factory=RateLimitSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    loop_watch: LoopWatchSettings = field(default_factory=LoopWatchSettings)
    limits: Limits = field(default_factory=Limits)
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    access_log: AccessLogSettings = field(default_factory=AccessLogSettings)
    notices: tuple[str, ...] = ()
