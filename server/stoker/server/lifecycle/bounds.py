"""Names and sizes that a repository may have. A name is checked against an allow-list.

Reaching a bound is an error of the model (or version) that reached it and never of the others.
"""

import re
from pathlib import PurePosixPath

from stoker.backends.api.errors import InvalidRequest

#: Model folders below all roots together; further ones are left out, in order of their names.
MAX_MODELS = 4096
#: Version folders of one model.
MAX_VERSIONS = 1024
#: The highest version number: the wire carries int64.
MAX_VERSION_NUMBER = 2**63 - 1
#: Files and folders of one version, at any depth.
MAX_FILES_PER_VERSION = 16_384
#: Folders below a version folder, one in the other.
MAX_DEPTH = 8
#: One file.
MAX_FILE_BYTES = 64 << 30
#: All files of one version.
MAX_VERSION_BYTES = 128 << 30
#: config.pbtxt.
MAX_CONFIG_BYTES = 1 << 20
#: Entries of a root or model folder that are looked at.
MAX_FOLDER_ENTRIES = 65_536
#: Files next to the version folders (labels, warm-up data) whose change makes a model load anew.
MAX_COMPANIONS = 1024
#: Why a version failed, in characters, as the index keeps it.
MAX_REASON_LENGTH = 4096
#: Versions up to this size, all files together, are loaded by `stoker check` without being asked to.
TRIAL_LOAD_BYTES = 64 << 20
#: Memory (address space) that the load of one version may take there, beside eight times the size of its files.
TRIAL_MEMORY_BYTES = 4 << 30
#: Address space that each usable core's threads take besides: a stack (8 MiB) and an arena of the C library (64 MiB), with some to spare.
TRIAL_CORE_BYTES = 256 << 20
#: Seconds that such a load may take where the operator does not say.
TRIAL_TIMEOUT_S = 120.0
#: Loads that were given up and have not ended; with more, no load begins. Each may hold a processor and a model's memory.
MAX_LATE_LOADS = 16
#: Links, one leading to the next, on the way to one file (the kernel's own bound).
MAX_LINKS = 40
#: Files and folders of a repository that are looked through for further names of a hard-linked file.
MAX_ROOT_ENTRIES = 1 << 20


_MODEL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_VERSION = re.compile(r"[1-9][0-9]{0,18}")
MODEL_NAME_RULE = "1 to 128 characters of A-Z a-z 0-9 _ . -, not only dots"


def is_model_name(name: str) -> bool:
    """Whether `name` may name a model, and so a folder."""
    return _MODEL_NAME.fullmatch(name) is not None and name.strip(".") != ""


def parse_version(name: str) -> int | None:
    """The version a folder named `name` holds: a positive decimal number without sign or leading zeros; None: not a version."""
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
    """`name` in quotes, fit for a message: whatever does not print is escaped."""
    return f"'{name}'" if name.isprintable() and len(name) <= 255 else ascii(name[:255])
