"""TensorFlow Serving's flags that set more or less than one field: implemented, or accepted with a log line about their effect."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from stoker.server.core.flag import FlagError, Panel, number, option, path, switch
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.server_config import ServerConfig

_DAY_S: Final = 86_400


@dataclass(frozen=True, kw_only=True)
class TensorflowFlags:
    """The panel "TensorFlow Serving"."""

    model_name: Annotated[
        str | None,
        option("model-name", panel=Panel.TENSORFLOW, text="Serve one model under this name; --model-base-path is the model's folder."),
    ] = None
    model_config_file: Annotated[
        Path | None, path("model-config-file", panel=Panel.TENSORFLOW, text="A ModelServerConfig in text format: the models to serve.")
    ] = None
    model_config_file_poll_wait_seconds: Annotated[
        int,
        number(
            "model-config-file-poll-wait-seconds",
            0,
            _DAY_S,
            panel=Panel.TENSORFLOW,
            text="Time between checks of that file; 0 = read it once.",
        ),
    ] = 0
    file_system_poll_wait_seconds: Annotated[
        int | None,
        number(
            "file-system-poll-wait-seconds",
            0,
            _DAY_S,
            panel=Panel.TENSORFLOW,
            text="Time between scans of the model folders; 0 = scan once.",
        ),
    ] = None
    num_load_threads: Annotated[
        int | None, number("num-load-threads", 0, 256, panel=Panel.TENSORFLOW, text="Number of concurrent loads; 0 = one.")
    ] = None
    enable_model_warmup: Annotated[
        bool,
        switch(
            "enable-model-warmup", panel=Panel.TENSORFLOW, text="Accepted without effect: model_warmup in config.pbtxt sets the warm-up."
        ),
    ] = True

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: flags that require or exclude each other.
        """
        if self.model_name is not None and self.model_config_file is not None:
            raise FlagError("--model-name and --model-config-file say both what is served: give one of them")
        if self.model_config_file_poll_wait_seconds and self.model_config_file is None:
            raise FlagError("--model-config-file-poll-wait-seconds has no effect without --model-config-file")
        found: dict[str, Any] = {
            "serving_start.model_name": self.model_name,
            "serving_start.model_config_file": self.model_config_file,
            "serving_start.config_poll_s": float(self.model_config_file_poll_wait_seconds) or None,
            "notices": self._notices(),
        }
        if self.file_system_poll_wait_seconds:
            found["lifecycle.poll_interval_s"] = float(self.file_system_poll_wait_seconds)
        elif self.file_system_poll_wait_seconds == 0:
            found["lifecycle.control_mode"] = ControlMode.NONE
        elif self.model_name is not None or self.model_config_file is not None:
            # TensorFlow Serving scans every second by default; its users expect a new version to be served that soon.
            found["lifecycle.poll_interval_s"] = 1.0
        if self.num_load_threads is not None:
            found["lifecycle.load_concurrency"] = max(1, self.num_load_threads)
        return found

    def _notices(self) -> tuple[str, ...]:
        if self.enable_model_warmup:
            return ()
        return ("--enable_model_warmup=false has no effect: a model is warmed up if its config.pbtxt has model_warmup",)


def check_tensorflow(config: ServerConfig) -> None:
    """Rejects flags without effect, and a missing folder."""
    start, allows_reload = config.serving_start, config.tfs.allow_reload
    if start.batching_file is not None and not start.enable_batching:
        raise FlagError("--batching-parameters-file has no effect without --enable-batching")
    if allows_reload and start.model_config_file is None and start.model_name is None:
        raise FlagError("--allow-model-reload has no effect without --model-config-file or --model-name")
    if start.reload_root is not None and not allows_reload:
        raise FlagError("--model-reload-root has no effect without --allow-model-reload")
    if start.reload_root is not None and not start.reload_root.is_dir():
        raise FlagError(f"--model-reload-root={start.reload_root}: expected an existing folder")
