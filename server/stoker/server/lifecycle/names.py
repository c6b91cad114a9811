"""Which names of models, versions and files are taken. An allow-list: whatever is not plainly a name is refused."""

import re
from pathlib import PurePosixPath

from stoker.backends.api.errors import InvalidRequest
from stoker.server.lifecycle.bounds import MAX_DEPTH, MAX_VERSION_NUMBER

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
