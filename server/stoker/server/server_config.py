"""`ServerConfig`: everything a server is started with, as `stoker.server.flags` reads it from the command line and the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.server.core.limits import Limits
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.net.settings import SocketSettings, TlsSettings
from stoker.server.observability.access_log import AccessLogSettings
from stoker.server.observability.logs import LogSettings
from stoker.server.observability.settings import LoopWatchSettings, MetricsSettings
from stoker.server.protocols.adlik.settings import RestV1
from stoker.server.protocols.kserve.dynamic_settings import KServeSettings
from stoker.server.rpc.settings import GrpcSettings
from stoker.server.tuning.constants import BUSY_POLL_US
from stoker.server.web.cors_settings import CorsSettings
from stoker.server.web.settings import HttpFront


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStart:
    """The settings of TensorFlow Serving's flags.

    Attributes:
        model_name: The one model, whose folder is the first repository; None: repositories hold many.
        model_config_file: The list of models; None: there is none.
        config_poll_s: Seconds between looks at the list; None: it is read once.
        enable_batching: Whether models that leave it open are batched as `batching_file` says.
        batching_file: A BatchingParameters file; None: TensorFlow Serving's defaults.
        monitoring_file: A MonitoringConfig file; None: metrics are at their usual path.
        allow_reload: Whether clients may replace the list of models.
        reload_root: Below which further folders may lie that they name.
        labels_for_unavailable: Whether a new label may be given to a version that does not serve.
        rest_timeout_s: How long a REST request may take; None: as long as it does.
    """

    model_name: str | None = None
    model_config_file: Path | None = None
    config_poll_s: float | None = None
    enable_batching: bool = False
    batching_file: Path | None = None
    monitoring_file: Path | None = None
    allow_reload: bool = False
    reload_root: Path | None = None
    labels_for_unavailable: bool = False
    rest_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """A server's settings.

    Attributes:
        repositories: Model repository roots.
        control_mode: Who decides what is loaded.
        load_models: Models to load at start under explicit control; `*` = all.
        poll_interval_s: Seconds between scans of the repository.
        settle_s: How long a new or changed version must stay unchanged before it is taken.
        exit_on_error: End the process if a model fails to load at start.
        strict_readiness: Ready needs a READY version of every desired model.
        load_concurrency: Models loading at once.
        load_timeout_s: How long one attempt to load a version may take; 0 = without bound.
        load_retries: Further attempts after a failed load.
        config_name: Which of its configurations a model is served by; None: config.pbtxt.
        follows_links: Whether links in a repository are followed to what is below its root.
        complete_configs: Whether fields that a configuration omits are completed from the model file.
        server_id: The server's name towards clients.
        grpc_address, http_address, metrics_address: Addresses to bind.
        grpc_port, http_port: Ports; 0 = any free one; None = that front is off.
        metrics_port: A port of its own for /metrics; None = only on the HTTP port.
        metrics_on_http: Whether the HTTP port answers /metrics.
        grpc_reflection: Whether gRPC reflection is on.
        http_front: The HTTP/1.1 server of the HTTP port and the metrics port.
        sockets: Unix-domain sockets beside the ports, or instead of them.
        tls: Which ports are encrypted, and with what.
        api_key: The bearer token that every call but those of health must bring, on every port; None: none.
        cors: Which web pages' scripts may read answers of the HTTP port.
        grpc: What carries gRPC, and what it asks of connections.
        ready_file: Where the addresses are written as JSON once ready.
        shutdown_delay_s: How long the server serves on, not ready, after SIGTERM before it drains.
        exit_timeout_s: How long in-flight work may take after SIGTERM.
        max_queue_size: Requests that may wait for one model version.
        cpu_threads: CPU cores to share out; None = what this process may use.
        is_tuned: Whether the controllers of `stoker.server.tuning` are on.
        busy_poll_us: How long the event loop polls for the next request of a closed-loop client, microseconds; 0 = not at all.
        snapshot_dir: Where private copies of model files are made; None = the system's temporary folder.
        rest_v1: Whose protocol the REST routes below /v1 speak: auto, adlik or tfs.
        prefer_adlik: Under auto, whether metadata below /v1 is answered in Adlik's form for every model.
        allow_model_operate: Whether Adlik's ModelOperateService does anything.
        model_operate_root: Below which folder the paths lie that it may be given; None: it takes none.
        kserve: What is allowed of KServe v2's extensions.
        serving_start: What was set in TensorFlow Serving's words.
        limits: Bounds of the fronts.
        backend_settings: By backend, what it is configured with.
        metrics: Which optional metrics are shown.
        logs: Log settings.
        access_log: What is logged of requests.
        loop_watch: What counts as a blocked event loop, and what follows.
        notices: Lines to log at the start: what was given and has no effect here.
    """

    repositories: tuple[Path, ...]
    control_mode: ControlMode = ControlMode.POLL
    load_models: tuple[str, ...] = ()
    poll_interval_s: float = 15.0
    settle_s: float = 1.0
    exit_on_error: bool = False
    strict_readiness: bool = True
    load_concurrency: int = 4
    load_timeout_s: float = 600.0
    load_retries: int = 0
    config_name: str | None = None
    follows_links: bool = False
    complete_configs: bool = True
    server_id: str = "stoker"
    grpc_address: str = "127.0.0.1"
    http_address: str = "127.0.0.1"
    metrics_address: str = "127.0.0.1"
    grpc_port: int | None = 8500
    http_port: int | None = 8501
    metrics_port: int | None = None
    metrics_on_http: bool = True
    grpc_reflection: bool = False
    http_front: HttpFront = HttpFront.STOKER
    sockets: SocketSettings = field(default_factory=SocketSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    api_key: str | None = field(default=None, repr=False)
    cors: CorsSettings = field(default_factory=CorsSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    ready_file: Path | None = None
    shutdown_delay_s: float = 0.0
    exit_timeout_s: float = 30.0
    max_queue_size: int = 1024
    cpu_threads: int | None = None
    is_tuned: bool = True
    busy_poll_us: int = BUSY_POLL_US
    snapshot_dir: Path | None = None
    rest_v1: RestV1 = RestV1.AUTO
    prefer_adlik: bool = False
    allow_model_operate: bool = False
    model_operate_root: Path | None = None
    kserve: KServeSettings = field(default_factory=KServeSettings)
    serving_start: ServingStart = field(default_factory=ServingStart)
    limits: Limits = field(default_factory=Limits)
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    access_log: AccessLogSettings = field(default_factory=AccessLogSettings)
    loop_watch: LoopWatchSettings = field(default_factory=LoopWatchSettings)
    notices: tuple[str, ...] = ()
