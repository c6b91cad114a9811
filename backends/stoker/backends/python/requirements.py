"""Checks requirements.txt beside a model against the packages of the interpreter that will run it. Nothing is installed."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.python.interpreters import InterpreterFacts

FILE_NAME: Final = "requirements.txt"
MAX_BYTES: Final = 1 << 20
MAX_LINES: Final = 4096
_COMMENT = re.compile(r"(^|\s)#.*$")


def unmet(text: str, facts: InterpreterFacts) -> list[str]:
    """The requirements in `text` that the interpreter does not meet, each with what it has.

    Args:
        text: The content of a requirements.txt; options (`-r`, `--index-url`) and addresses are skipped: they name no version.
        facts: The packages and the environment markers of the interpreter.

    Raises:
        ModelLoadError: a line is no requirement; the message names it.
    """
    return list(_unmet(text, facts))


def _unmet(text: str, facts: InterpreterFacts) -> Iterator[str]:
    installed: Mapping[str, str] = {canonicalize_name(name): version for name, version in facts.packages.items()}
    for number, requirement in requirements_of(text):
        if requirement.marker is not None and not requirement.marker.evaluate(dict(facts.markers)):
            continue
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{requirement} ({FILE_NAME}:{number}) is not installed"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement} ({FILE_NAME}:{number}), but {version} is installed"


def requirements_of(text: str) -> Iterator[tuple[int, Requirement]]:
    """The requirements in the lines of `text`, with their line numbers.

    Raises:
        ModelLoadError: a line is no requirement, or there are too many.
    """
    joined = text.replace("\\\n", "  ")
    lines = joined.splitlines()
    if len(lines) > MAX_LINES:
        raise ModelLoadError(f"{FILE_NAME} has {len(lines)} lines; the limit is {MAX_LINES}")
    for number, line in enumerate(lines, 1):
        written = _COMMENT.sub("", line).strip()
        # Options, and paths or addresses of files.
        if not written or written.startswith("-") or re.match(r"(\.|/|[a-z+]+://)", written):
            continue
        written = re.split(r"\s--(?:hash|config-settings|global-option)", written)[0].strip()
        try:
            yield number, Requirement(written)
        except InvalidRequirement as error:
            raise ModelLoadError(f"{FILE_NAME}:{number}: '{written[:80]}' is no requirement: {str(error).splitlines()[0]}") from None


def requirements_file(folder: Path, model_dir: Path | None) -> Path | None:
    """The requirements.txt in the version folder, else the one in the model's folder; None: there is none."""
    for place in (folder, model_dir):
        if place is not None and (place / FILE_NAME).is_file():
            return place / FILE_NAME
    return None


def check_requirements(file: Path, facts: InterpreterFacts, model_name: str) -> None:
    """Checks the requirements in `file`.

    Raises:
        ModelLoadError: some are not met; the message names each, and the command that builds an environment.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{FILE_NAME} cannot be read: {type(error).__name__}") from error
    if len(content) > MAX_BYTES:
        raise ModelLoadError(f"{FILE_NAME} is larger than {MAX_BYTES} bytes")
    missing = unmet(text, facts)
    if missing:
        shown = "; ".join(missing[:10]) + (f"; and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise ModelLoadError(f"the interpreter of the model does not meet its requirements: {shown}; run `stoker env build {model_name}`")
