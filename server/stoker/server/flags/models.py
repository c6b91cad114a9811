"""Flags that say which models are served, and when they are loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from stoker.server.flags.declare import Switch, flag, number, one_of, option, path, time
from stoker.server.flags.rules import AllowedLinks, ControlChoice, LoadingMethod, control
from stoker.server.flags.values import FlagError
from stoker.server.lifecycle.names import MODEL_NAME_RULE, is_model_name

_PANEL = "Models"
_LINKS_NOTICE = (
    "--allow-links=within-root: links in the repository are followed to whatever lies below its root, hidden folders included; "
    "whoever may write there chooses among these files"
)


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """The panel "Models"."""

    model_base_path: Annotated[
        list[Path] | None, path("model-base-path", panel=_PANEL, text="Model repository; may be repeated (environment: one per line).")
    ] = None
    model_control_mode: Annotated[
        ControlChoice | None,
        one_of(
            "model-control-mode",
            ControlChoice,
            panel=_PANEL,
            text="none: load all once. poll (default): follow the repository. explicit: load by --load-model and API only.",
        ),
    ] = None
    loading_method: Annotated[
        LoadingMethod | None,
        one_of("loading-method", LoadingMethod, panel=_PANEL, text="Adlik's form: automatic = poll, manual = load all once, then by API."),
    ] = None
    load_model: Annotated[
        list[str] | None,
        option("load-model", panel=_PANEL, text="Load this model at start (explicit mode); may be repeated; '*' = all."),
    ] = None
    repository_poll_secs: Annotated[float, time("repository-poll-secs", 0.05, 86400, panel=_PANEL, text="Time between scans.")] = 15.0
    settle_secs: Annotated[
        float, time("settle-secs", 0, 3600, panel=_PANEL, text="A version is taken once it has not changed for this long.")
    ] = 1.0
    model_load_thread_count: Annotated[int, number("model-load-thread-count", 1, 256, panel=_PANEL, text="Models loading at once.")] = 4
    model_load_timeout_secs: Annotated[
        float,
        time("model-load-timeout-secs", 0, 86400, panel=_PANEL, text="How long loading one version may take; it fails then; 0: no bound."),
    ] = 600.0
    model_load_retry_count: Annotated[
        int, number("model-load-retry-count", 0, 100, panel=_PANEL, text="Further attempts after a failed load.")
    ] = 0
    snapshot_dir: Annotated[
        Path | None, path("snapshot-dir", panel=_PANEL, text="Where private copies of model files are made (default: temporary folder).")
    ] = None
    allow_links: Annotated[
        AllowedLinks,
        one_of(
            "allow-links",
            AllowedLinks,
            panel=_PANEL,
            text="none: refuse links in the repository. within-root: follow those that lead to what is below its root.",
        ),
    ] = AllowedLinks.NONE
    exit_on_error: Annotated[Switch, flag("exit-on-error", panel=_PANEL, text="End if a model fails to load at start.")] = False
    strict_readiness: Annotated[
        Switch, flag("strict-readiness", panel=_PANEL, text="Ready needs a READY version of every wanted model.")
    ] = True

    model_config_name: Annotated[
        str | None,
        option(
            "model-config-name",
            metavar="NAME",
            panel=_PANEL,
            text="Instead of config.pbtxt, read configs/NAME.pbtxt of models that have it.",
        ),
    ] = None
    disable_auto_complete_config: Annotated[
        Switch,
        flag("disable-auto-complete-config", panel=_PANEL, text="Refuse configurations that leave backend, inputs or outputs open."),
    ] = False

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: flags that exclude each other, or a name that is no file's.
        """
        if self.model_config_name is not None and not is_model_name(self.model_config_name):
            raise FlagError(f"--model-config-name={self.model_config_name}: expected {MODEL_NAME_RULE}")
        mode, models = control(self.model_control_mode, self.loading_method, tuple(self.load_model or ()))
        return {
            "repositories": tuple(self.model_base_path or ()),
            "control_mode": mode,
            "load_models": models,
            "poll_interval_s": self.repository_poll_secs,
            "settle_s": self.settle_secs,
            "exit_on_error": self.exit_on_error,
            "strict_readiness": self.strict_readiness,
            "load_concurrency": self.model_load_thread_count,
            "load_timeout_s": self.model_load_timeout_secs,
            "load_retries": self.model_load_retry_count,
            "snapshot_dir": self.snapshot_dir,
            "config_name": self.model_config_name,
            "follows_links": self.allow_links is AllowedLinks.WITHIN_ROOT,
            "notices": (_LINKS_NOTICE,) if self.allow_links is AllowedLinks.WITHIN_ROOT else (),
            "complete_configs": not self.disable_auto_complete_config,
        }
