"""TensorFlow Serving's flags under their names: honoured, or accepted with a line in the log that says what they do here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from stoker.server.flags.declare import FlagError, Switch, flag, number, option, path
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.server_config import ServingStart

_PANEL = "TensorFlow Serving"
_DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class TensorflowFlags:
    """The panel "TensorFlow Serving"."""

    model_name: Annotated[
        str | None, option("model-name", panel=_PANEL, text="Serve one model, under this name; --model-base-path is its own folder.")
    ] = None
    model_config_file: Annotated[
        Path | None, path("model-config-file", panel=_PANEL, text="A ModelServerConfig in text format: the models to serve.")
    ] = None
    model_config_file_poll_wait_seconds: Annotated[
        int, number("model-config-file-poll-wait-seconds", 0, _DAY_S, panel=_PANEL, text="Time between looks at that file; 0 = once.")
    ] = 0
    file_system_poll_wait_seconds: Annotated[
        int | None,
        number("file-system-poll-wait-seconds", 0, _DAY_S, panel=_PANEL, text="Time between scans of the model folders; 0 = once."),
    ] = None
    allow_version_labels_for_unavailable_models: Annotated[
        Switch,
        flag("allow-version-labels-for-unavailable-models", panel=_PANEL, text="Let a new label belong to a version that is not loaded."),
    ] = False
    enable_batching: Annotated[
        Switch, flag("enable-batching", panel=_PANEL, text="Batch models that leave it open as --batching-parameters-file says.")
    ] = False
    batching_parameters_file: Annotated[
        Path | None, path("batching-parameters-file", panel=_PANEL, text="A BatchingParameters file in text format.")
    ] = None
    monitoring_config_file: Annotated[
        Path | None, path("monitoring-config-file", panel=_PANEL, text="A MonitoringConfig file: whether and where metrics are.")
    ] = None
    rest_api_timeout_in_ms: Annotated[
        int | None, number("rest-api-timeout-in-ms", 1, 1000 * _DAY_S, panel=_PANEL, text="How long a REST request may take.")
    ] = None
    num_load_threads: Annotated[int | None, number("num-load-threads", 0, 256, panel=_PANEL, text="Models loading at once; 0 = one.")] = (
        None
    )
    enable_model_warmup: Annotated[
        Switch, flag("enable-model-warmup", panel=_PANEL, text="Accepted: warm-up is what config.pbtxt's model_warmup says.")
    ] = True
    allow_model_reload: Annotated[
        Switch, flag("allow-model-reload", panel=_PANEL, text="Let clients replace the list of models (HandleReloadConfigRequest).")
    ] = False
    model_reload_root: Annotated[
        Path | None, path("model-reload-root", panel=_PANEL, text="Folder below which their list may name folders of its own.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: flags that exclude or need each other.
        """
        if self.model_name is not None and self.model_config_file is not None:
            raise FlagError("--model-name and --model-config-file say both what is served: give one of them")
        if self.batching_parameters_file is not None and not self.enable_batching:
            raise FlagError("--batching-parameters-file has no effect without --enable-batching")
        if self.model_config_file_poll_wait_seconds and self.model_config_file is None:
            raise FlagError("--model-config-file-poll-wait-seconds has no effect without --model-config-file")
        if self.allow_model_reload and self.model_config_file is None and self.model_name is None:
            raise FlagError("--allow-model-reload has no effect without --model-config-file or --model-name")
        if self.model_reload_root is not None and not self.allow_model_reload:
            raise FlagError("--model-reload-root has no effect without --allow-model-reload")
        if self.model_reload_root is not None and not self.model_reload_root.is_dir():
            raise FlagError(f"--model-reload-root={self.model_reload_root}: expected an existing folder")
        start = ServingStart(
            model_name=self.model_name,
            model_config_file=self.model_config_file,
            config_poll_s=float(self.model_config_file_poll_wait_seconds) or None,
            enable_batching=self.enable_batching,
            batching_file=self.batching_parameters_file,
            monitoring_file=self.monitoring_config_file,
            allow_reload=self.allow_model_reload,
            reload_root=self.model_reload_root,
            labels_for_unavailable=self.allow_version_labels_for_unavailable_models,
            rest_timeout_s=None if self.rest_api_timeout_in_ms is None else self.rest_api_timeout_in_ms / 1000,
        )
        return {"serving_start": start, "notices": self._notices(), **self._lifecycle()}

    def _lifecycle(self) -> dict[str, Any]:
        """Settings that flags of Stoker's own names set, too."""
        found: dict[str, Any] = {}
        if self.file_system_poll_wait_seconds:
            found["poll_interval_s"] = float(self.file_system_poll_wait_seconds)
        elif self.file_system_poll_wait_seconds == 0:
            found["control_mode"] = ControlMode.NONE
        elif self.model_name is not None or self.model_config_file is not None:
            # TensorFlow Serving looks every second; whoever writes a new version there expects to find it so soon.
            found["poll_interval_s"] = 1.0
        if self.num_load_threads is not None:
            found["load_concurrency"] = max(1, self.num_load_threads)
        return found

    def _notices(self) -> tuple[str, ...]:
        if self.enable_model_warmup:
            return ()
        return ("--enable_model_warmup=false has no effect: a model is warmed up if its config.pbtxt has model_warmup",)
