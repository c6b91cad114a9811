"""Which targets are installed: `find_target` gives one by the name that `--target` has."""

import contextlib
from importlib.metadata import entry_points

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.target import Target

ENTRY_POINT_GROUP = "stoker.targets"


def target_names() -> list[str]:
    """Names of the installed targets, sorted."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)})


def find_target(name: str) -> Target:
    """The target called `name`, by its entry point's name or one of its aliases.

    Raises:
        OptionError: there is none; the text lists those there are.
        CompileError: it is installed, and cannot be imported.
    """
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name in points:
        return _made(name, points[name].load)
    # Aliases are known to the classes only, so all are imported.
    for point_name, point in points.items():
        with contextlib.suppress(CompileError):  # one that cannot be imported has no aliases, and is not what was asked for
            target = _made(point_name, point.load)
            if name in target.aliases:
                return target
    known = target_names()
    raise OptionError(f"there is no target '{name}'{did_you_mean(name, known)}; installed: {', '.join(known) or 'none'}")


def _made(name: str, load: object) -> Target:
    try:
        target = load()()  # type: ignore[operator] # EntryPoint.load gives Any
    except ImportError as error:
        raise CompileError(f"target '{name}' is installed but cannot be imported: {error}") from error
    if not isinstance(target, Target):
        raise CompileError(f"entry point '{name}' of {ENTRY_POINT_GROUP} is no stoker.compiler.target.Target but {type(target).__name__}")
    return target
