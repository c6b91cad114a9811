"""What an operator may decide about loading and unloading, with its flags."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from stoker.server.core.flag import BadValue, Panel, duration, number, off_switch, path, switch
from stoker.server.lifecycle.bounds import MODEL_NAME_RULE, is_model_name


class ControlMode(enum.Enum):
    """Who decides what is loaded, as Triton's `--model-control-mode`."""

    NONE = "none"
    """Everything in the repository at start, and nothing after."""
    POLL = "poll"
    """What the repository holds, as it changes."""
    EXPLICIT = "explicit"
    """What clients ask for by load and unload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings:
    """Settings of the model manager.

    Attributes:
        control_mode: Who decides what is loaded.
        load_models: Models to load at start under explicit control; `*` stands for all. Ignored otherwise.
        poll_interval_s: Seconds between scans of the repository, whether or not file events come.
        settle_s: Anything that appears, changes or vanishes must stay unchanged for so long before it counts; nothing waits at start.
        exit_on_error: See `ModelManager.must_exit`.
        strict_readiness: False: the end of the initial loads that are not slow is enough.
        load_concurrency: Versions loading at once, without those that have become slow; see `LoadSlots`.
        load_timeout_s: The bound of one attempt.
        labels_for_unavailable: Whether a label that never meant anything may be given to a version that does not serve.
        unload_grace_s: How long an explicit unload waits for the requests in flight before it responds; they finish in any case.
        drain_timeout_s: After how long a version that still has requests in flight is named in the log. They are not cut off.
    """

    control_mode: ControlMode = ControlMode.POLL
    load_models: tuple[str, ...] = ()
    poll_interval_s: Annotated[
        float,
        duration("repository-poll-secs", 0.05, 86400, panel=Panel.MODELS, text="Time between scans.", aliases=("fs-poll-wait-seconds",)),
    ] = 15.0
    settle_s: Annotated[
        float, duration("settle-secs", 0, 3600, panel=Panel.MODELS, text="A version is taken once it has not changed for this long.")
    ] = 1.0
    load_concurrency: Annotated[int, number("model-load-thread-count", 1, 256, panel=Panel.MODELS, text="Models loading at once.")] = 4
    load_timeout_s: Annotated[
        float,
        duration(
            "model-load-timeout-secs",
            0,
            86400,
            panel=Panel.MODELS,
            text="How long loading one version may take; it fails then; 0: no bound.",
        ),
    ] = 600.0
    load_retries: Annotated[
        int,
        number(
            "model-load-retry-count",
            0,
            100,
            panel=Panel.MODELS,
            text="Further attempts after a failed load.",
            aliases=("max-num-load-retries",),
        ),
    ] = 0
    exit_on_error: Annotated[bool, switch("exit-on-error", panel=Panel.MODELS, text="End if a model fails to load at start.")] = False
    strict_readiness: Annotated[
        bool, switch("strict-readiness", panel=Panel.MODELS, text="Ready needs a READY version of every desired model.")
    ] = True
    labels_for_unavailable: Annotated[
        bool,
        switch(
            "allow-version-labels-for-unavailable-models",
            panel=Panel.TENSORFLOW,
            text="Let a new label belong to a version that is not loaded.",
        ),
    ] = False
    unload_grace_s: float = 1.0
    drain_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How versions are loaded.

    Attributes:
        snapshot_dir: None: the system's temporary folder.
        complete_configs: Whether fields that a configuration omits are completed from the model file; if not, they are an error.
        max_queue_size: The bound where the model's configuration has no lower one.
        cpu_threads: None: what this process may use.
    """

    snapshot_dir: Annotated[
        Path | None,
        path("snapshot-dir", panel=Panel.MODELS, text="Where private copies of model files are made (default: temporary folder)."),
    ] = None
    complete_configs: Annotated[
        bool,
        off_switch(
            "disable-auto-complete-config",
            panel=Panel.MODELS,
            text="Refuse configurations that leave backend, inputs or outputs open.",
            aliases=("strict-model-config",),
        ),
    ] = True
    max_queue_size: Annotated[
        int, number("max-queue-size", 1, 10_000_000, panel=Panel.SERVING, text="Requests that may wait for one model version.")
    ] = 1024
    cpu_threads: Annotated[
        int | None,
        number("cpu-threads", 1, 4096, panel=Panel.SERVING, text="CPU cores shared out among instances (default: the usable ones)."),
    ] = None


def read_config_name(given: str) -> str:
    """Reads the name of a configuration, which names a file.

    Raises:
        BadValue: it may not name a file.
    """
    if not is_model_name(given):
        raise BadValue(given, MODEL_NAME_RULE)
    return given
