"""Says why a folder cannot be used as a model repository, with the cure of the usual mistakes. For the operator: texts name paths."""

import re
import shlex
from pathlib import Path

#: A place that is no folder of this host, such as `s3://bucket/models`; `Path` has joined its slashes.
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+:/")
#: What divided several repositories in one value before each had its own flag or line: PATH's separator on POSIX.
_OLD_SEPARATOR = ":"


def unreadable_root(root: Path, error: OSError) -> str:
    """Why the repository `root` cannot be read."""
    reason = f"model repository '{root}' cannot be read: {error.strerror or error}"
    return reason + _if_missing(str(root)) if isinstance(error, FileNotFoundError) else reason


def _if_missing(root: str) -> str:
    parts = [part for part in root.split(_OLD_SEPARATOR) if part]
    if len(parts) > 1 and all(Path(part).is_dir() for part in parts):
        flags = " ".join(f"--model-repository={shlex.quote(part)}" for part in parts)
        return (
            f"; a '{_OLD_SEPARATOR}' is part of the path: repeat the flag for several repositories ({flags}), "
            "or give one per line in the environment"
        )
    if _REMOTE.match(root):
        return "; a folder of this host is expected: models are not fetched from elsewhere"
    return ""
