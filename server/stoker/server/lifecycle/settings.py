"""The settings of loading and unloading with their flags, and the fixed bounds of a repository.

Names are checked against an allow-list. A bound that is reached is an error of the model or version that reaches it, never of others.
"""

import enum
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from stoker.backends.api.errors import InvalidRequest
from stoker.server.core.flag import BadValue, Panel, duration, number, off_switch, one_of, path, switch


class ControlMode(enum.Enum):
    """Selects the models to load, as Triton's `--model-control-mode`."""

    NONE = "none"
    """All models of the repository at start, and none after."""
    POLL = "poll"
    """The models of the repository, followed by polling."""
    EXPLICIT = "explicit"
    """The models that clients load and unload by the API."""


class PythonModels(enum.StrEnum):
    """Which models written in Python may run, as `--allow-python-models`."""

    AUTO = "auto"
    """Those in local repositories that the command line names; no code that comes over the network."""
    ON = "on"
    """Also those of remote repositories and of the files of a load request."""
    OFF = "off"
    """None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings:
    """Settings of the model manager.

    Attributes:
        control_mode: Selects the models to load.
        load_models: Models to load at start under explicit control; `*` stands for all. Ignored otherwise.
        poll_interval_s: Seconds between scans of the repository, whether or not file events come.
        settle_s: A file that appears, changes or vanishes must stay unchanged for so many seconds before the change takes effect; no wait
            at start.
        exit_on_error: See `ModelManager.must_exit`.
        strict_readiness: False: the server is ready once the initial loads have ended, except slow ones.
        load_concurrency: Concurrent loads, without those that have become slow; see `LoadSlots`.
        load_timeout_s: Bound of one attempt to load a version, seconds.
        labels_for_unavailable: Whether a new label may belong to a version that does not serve.
        unload_grace_s: How long an explicit unload waits for the requests in flight before it responds, seconds; they complete in any case.
        drain_timeout_s: After this time, in seconds, a version that still has requests in flight is logged. The requests are not cancelled.
    """

    control_mode: ControlMode = ControlMode.POLL
    load_models: tuple[str, ...] = ()
    poll_interval_s: Annotated[
        float,
        duration(
            "repository-poll-secs",
            0.05,
            86400,
            panel=Panel.MODELS,
            text="Time between scans of the repository.",
            aliases=("fs-poll-wait-seconds",),
        ),
    ] = 15.0
    settle_s: Annotated[
        float, duration("settle-secs", 0, 3600, panel=Panel.MODELS, text="Time without changes after which a new version is loaded.")
    ] = 1.0
    load_concurrency: Annotated[int, number("model-load-thread-count", 1, 256, panel=Panel.MODELS, text="Number of concurrent loads.")] = 4
    load_timeout_s: Annotated[
        float,
        duration(
            "model-load-timeout-secs",
            0,
            86400,
            panel=Panel.MODELS,
            text="Bound on the time to load one version; 0: no bound.",
        ),
    ] = 600.0
    load_retries: Annotated[
        int,
        number(
            "model-load-retry-count",
            0,
            100,
            panel=Panel.MODELS,
            text="Number of retries of a failed load.",
            aliases=("max-num-load-retries",),
        ),
    ] = 0
    exit_on_error: Annotated[bool, switch("exit-on-error", panel=Panel.MODELS, text="Exit if a model fails to load at start.")] = False
    strict_readiness: Annotated[
        bool, switch("strict-readiness", panel=Panel.MODELS, text="Report ready only when every desired model has a READY version.")
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
        complete_configs: Whether fields that a configuration omits are completed from the model file; False: they are errors.
        max_queue_size: Bound of a model's queue, unless its configuration has a lower one.
        cpu_threads: None: the cores that this process may use.
        python_models: Which models that are code may run.
    """

    snapshot_dir: Annotated[
        Path | None,
        path("snapshot-dir", panel=Panel.MODELS, text="Folder for private copies of model files (default: temporary folder)."),
    ] = None
    complete_configs: Annotated[
        bool,
        off_switch(
            "disable-auto-complete-config",
            panel=Panel.MODELS,
            text="Reject configurations that omit backend, inputs or outputs.",
            aliases=("strict-model-config",),
        ),
    ] = True
    max_queue_size: Annotated[
        int, number("max-queue-size", 1, 10_000_000, panel=Panel.SERVING, text="Requests that may wait for one model version.")
    ] = 1024
    cpu_threads: Annotated[
        int | None,
        number("cpu-threads", 1, 4096, panel=Panel.SERVING, text="CPU cores to distribute among instances (default: all usable ones)."),
    ] = None
    python_models: Annotated[
        PythonModels,
        one_of(
            "allow-python-models",
            PythonModels,
            panel=Panel.MODELS,
            text="Models written in Python that may run: of local repositories (auto), also code sent by clients (on), none (off).",
        ),
    ] = PythonModels.AUTO


def read_config_name(given: str) -> str:
    """Reads the name of a configuration, which names a file.

    Raises:
        BadValue: it is no valid file name.
    """
    if not is_model_name(given):
        raise BadValue(given, MODEL_NAME_RULE)
    return given


#: Model folders below all roots together; further ones are ignored, in order of their names.
MAX_MODELS = 4096
#: Version folders of one model.
MAX_VERSIONS = 1024
#: The highest version number: the protocols carry int64.
MAX_VERSION_NUMBER = 2**63 - 1
#: Files and folders of one version, at any depth.
MAX_FILES_PER_VERSION = 16_384
#: Nesting depth of folders below a version folder.
MAX_DEPTH = 8
#: Bytes of one file.
MAX_FILE_BYTES = 64 << 30
#: Bytes of all files of one version.
MAX_VERSION_BYTES = 128 << 30
#: Bytes of config.pbtxt.
MAX_CONFIG_BYTES = 1 << 20
#: Entries of a root or model folder that a scan reads.
MAX_FOLDER_ENTRIES = 65_536
#: Files beside the version folders (labels, warm-up data) whose change reloads the model.
MAX_COMPANIONS = 1024
#: Length of the reason of a failed version in the index, characters.
MAX_REASON_LENGTH = 4096
#: Versions up to this size, in bytes of all files together, get a trial load by `stoker check` by default.
TRIAL_LOAD_BYTES = 64 << 20
#: Bytes of address space for the trial load of one version, in addition to eight times the size of its files.
TRIAL_MEMORY_BYTES = 4 << 30
#: Additional address space for the threads of each usable core: a stack (8 MiB), an arena of the C library (64 MiB) and a margin.
TRIAL_CORE_BYTES = 256 << 20
#: Default bound of one trial load, seconds.
TRIAL_TIMEOUT_S = 120.0
#: Bound on loads that have timed out but still run; above it no load begins. Each may use a core and a model's memory.
MAX_LATE_LOADS = 16
#: Links followed in a chain to one file (the kernel's own bound).
MAX_LINKS = 40
#: Files and folders of a repository that are searched for further names of a hard-linked file.
MAX_ROOT_ENTRIES = 1 << 20


_MODEL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_VERSION = re.compile(r"[1-9][0-9]{0,18}")
MODEL_NAME_RULE = "1 to 128 characters of A-Z a-z 0-9 _ . -, not only dots"


def is_model_name(name: str) -> bool:
    """Whether `name` is a valid name of a model, and so of a folder."""
    return _MODEL_NAME.fullmatch(name) is not None and name.strip(".") != ""


def parse_version(name: str) -> int | None:
    """The version number of a folder named `name`: a positive decimal number without sign or leading zeros; None: no version."""
    if _VERSION.fullmatch(name) is None:
        return None
    version = int(name)
    return version if version <= MAX_VERSION_NUMBER else None


def relative_file(path: str) -> PurePosixPath:
    """`path` as a clean relative path of a file inside a version folder.

    Raises:
        InvalidRequest: it is empty, absolute, too deep, has empty, `.` or `..` parts, or characters that no file name needs.
    """
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") or len(part.encode(errors="replace")) > 255 for part in parts)
        or "\\" in path
        or not path.isprintable()
        or len(parts) > MAX_DEPTH + 1
    ):
        raise InvalidRequest(
            f"file path {path[:200]!a} is not allowed: expected a relative path, its parts divided by '/', "
            f"without '..', at most {MAX_DEPTH} folders deep"
        )
    return PurePosixPath(path)


def shown(name: str) -> str:
    """`name` in quotes for a message: unprintable characters are escaped."""
    return f"'{name}'" if name.isprintable() and len(name) <= 255 else ascii(name[:255])
