"""What an operator may decide about loading and unloading."""

import enum
from dataclasses import dataclass


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
        settle_s: How long whatever appeared, changed or vanished must stay as it is before it counts; nothing waits at start.
        exit_on_error: Whether the process should end if a model failed to load at start; see `ModelManager.must_exit`.
        strict_readiness: Whether ready needs a READY version of every wanted model; else the end of the initial loads that
            are not slow is enough.
        load_concurrency: Versions loading at once, without those that have become slow; see `LoadSlots`.
        load_timeout_s: How long one attempt to load a version may take; 0: without bound. It is then FAILED.
        load_retries: Further attempts after a failed load.
        unload_grace_s: How long an explicit unload waits for the requests in flight before it answers; they finish in any case.
        labels_for_unavailable: Whether a label that never meant anything may be given to a version that does not serve.
        drain_timeout_s: After how long a version that still has requests in flight is named in the log. They are not cut off.
    """

    control_mode: ControlMode = ControlMode.POLL
    load_models: tuple[str, ...] = ()
    poll_interval_s: float = 15.0
    settle_s: float = 1.0
    exit_on_error: bool = False
    strict_readiness: bool = True
    load_concurrency: int = 4
    load_timeout_s: float = 600.0
    load_retries: int = 0
    unload_grace_s: float = 1.0
    labels_for_unavailable: bool = False
    drain_timeout_s: float = 60.0
