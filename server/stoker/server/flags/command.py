"""From the words of a command line and the environment to a `ServerConfig`.

`_` for `-`, booleans bare or with a value in the next word, Triton's and Adlik's names for the same things.

Written by hand because it is part of every start: typer reads a command line through pydantic, which would stay in memory for the server's
life (11 MiB and a fifth of the start, see docs/adr/0066). typer makes the help from the same declarations.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_origin

from stoker.backends.api.nearest import nearest
from stoker.server.core.flag import FALSE, TRUE, BadValue, FlagError
from stoker.server.flags.network import check_http_front, check_sockets, check_tls
from stoker.server.flags.protocols import check_protocols, key_notices, key_of_environment
from stoker.server.flags.serving import check_models, check_ports, has_plain_public_port
from stoker.server.flags.table import Declared, boolean_names, built, flags, primary_names, settings_of
from stoker.server.flags.tensorflow import check_tensorflow
from stoker.server.server_config import ServerConfig

_PREFIX: Final = "STOKER_"
#: What others than the server read: the simulated devices, and the client with its command.
_OF_OTHERS: Final = ("STOKER_SIM_", "STOKER_TLS_", "STOKER_URL", "STOKER_API_KEY", "STOKER_HEADERS", "STOKER_MODELS")
#: What Kubernetes sets in every container for a service that is called stoker, or stoker-something.
_OF_SERVICES: Final = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT_")
_ADDRESSES: Final = ("tcp://", "udp://", "sctp://")


def meant(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """`; did you mean X?` for the end of an error, X with `prefix` before it; empty if none of the names `known` is near."""
    found = nearest(name, sorted(known))
    return f"; did you mean {prefix}{found[0]}?" if found else ""


def unknown_variables(environment: Mapping[str, str], known: Iterable[str]) -> tuple[str, ...]:
    """A line for each variable that begins as flags' do, and sets none; its value, which may be a secret, is not said.

    Args:
        environment: Variables by name.
        known: Names that flags are read from.
    """
    names = sorted(known)
    strange = (name for name in sorted(environment) if name.startswith(_PREFIX) and name not in names)
    return tuple(
        f"{name} in the environment sets no flag{meant(name, names)}" for name in strange if not _is_of_others(name, environment[name])
    )


def _is_of_others(name: str, value: str) -> bool:
    return name.startswith(_OF_OTHERS) or any(part in name for part in _OF_SERVICES) or value.startswith(_ADDRESSES)


class Piece(NamedTuple):
    """A flag whose value is a piece of another flag's.

    Attributes:
        flag: The other flag.
        beginning: What stands before the value there.
    """

    flag: str
    beginning: str


#: Triton's older flags, each of which set one thing.
PIECES: Final = {
    "trace-file": Piece("trace-config", "triton,file="),
    "trace-log-frequency": Piece("trace-config", "triton,log-frequency="),
    "trace-level": Piece("trace-config", "level="),
    "trace-rate": Piece("trace-config", "rate="),
    "trace-count": Piece("trace-config", "count="),
}
#: Flags that are words by themselves.
BARE = frozenset({"help", "version"})
#: Of no use to anybody: what `spell` makes of a word that belongs to no flag.
STRAY = "unexpected-argument"


def spell(arguments: Sequence[str]) -> list[str]:
    """Arguments with every flag by its own name, in its dashed spelling, and every boolean flag with its value attached.

    A word that is neither a flag nor the value of one becomes the value of `STRAY`, which `reject_stray` rejects by name.
    """
    spelled: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*spelled, word, *rest]
        if not word.startswith("-"):
            spelled.append(f"--{STRAY}={word}")
            continue
        if not word.startswith("--"):
            spelled.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        name = primary_names().get(name, name)
        if name in PIECES and (equals or rest):
            piece, equals, value = PIECES[name], "=", value if equals else rest.pop(0)
            name, value = piece.flag, f"{piece.beginning}{value}"
        if not equals and name in boolean_names():
            value = rest.pop(0) if rest and rest[0].lower() in TRUE | FALSE else "true"
            equals = "="
        if equals and not value and name == "model-base-path":
            raise FlagError(f"--{name} is empty: give the folder that holds the models")
        spelled.append(f"--{name}{equals}{value}")
        if not equals and name not in BARE:
            spelled.extend(rest[:1])
            del rest[:1]
    return spelled


def reject_stray(words: Sequence[str]) -> None:
    """Before any value is read: a stray word may well be the value that another flag lacks."""
    for word in words:
        is_folder = os.sep in word or Path(word).is_dir()
        raise FlagError(f"unexpected argument '{word}': " + (f"use --model_base_path={word}" if is_folder else "flags are --name=value"))


class Page(Enum):
    """A page that is printed instead of a start."""

    HELP = auto()
    VERSION = auto()


def read_flags(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any] | Page:
    """By name of a flag that is given, its value: from `words`, else from `environment`; or the page that `words` ask for.

    Args:
        words: As `spell` returns them.
        environment: Variables by name.

    Raises:
        FlagError: an unknown flag, a word too many, or a value that is missing or cannot be read.
    """
    given = _by_flag(words)
    for name, texts in given.items():  # in the order they came
        if name in BARE:
            return Page[name.upper()]
        if name == STRAY:
            reject_stray(texts)
    values: dict[str, Any] = {}
    for name, each in flags().items():
        if name in given:
            values[name] = _value(f"--{name}", each, given[name])
        elif (variable := next((one for one in each.flag.variables if environment.get(one)), None)) is not None:
            values[name] = _value(variable, each, _pieces(each.kind, environment[variable]))
    return values


def _by_flag(words: Sequence[str]) -> dict[str, list[str]]:
    """The texts each flag was given, by its name."""
    names = {*flags(), STRAY, *BARE}
    found: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            reject_stray(list(rest))
            break
        if not word.startswith("--"):  # one dash: `spell` has made every other word a flag or its value
            reject_stray([word])
        name, equals, text = word.removeprefix("--").partition("=")
        if name not in names:
            raise FlagError(f"unknown flag --{name}{meant(name, {*(names - {STRAY}), *primary_names()}, prefix='--')}")
        if name in BARE:
            if equals:
                raise FlagError(f"--{name} takes no value")
        elif not equals:
            following = next(rest, None)
            if following is None:
                raise FlagError(f"--{name} needs a value")
            text = following
        found.setdefault(name, []).append(text)
    return found


def _value(source: str, declared: Declared, texts: Sequence[str]) -> Any:
    """What `texts`, of a flag or variable called `source`, mean; of several the last counts, unless the flag takes a list."""
    read: Callable[[str], Any] = declared.flag.parser or (Path if _holds(declared.kind, Path) else str)
    try:
        if _holds(declared.kind, list):
            return [read(text) for text in texts]
        return read(texts[-1])
    except BadValue as error:
        raise FlagError(f"{source}={error.text}: expected {error.expected}") from None


def _pieces(kind: Any, text: str) -> list[str]:
    """The values in a variable: of a list, one path per line (a path may hold any other separator), or texts separated by blanks."""
    if not _holds(kind, list):
        return [text]
    pieces = text.splitlines() if _holds(kind, Path) else text.split()
    return [piece.strip() for piece in pieces if piece.strip()]


def _holds(kind: Any, sought: type) -> bool:
    """Whether an annotation is of the type `sought`, perhaps beside None or within a list."""
    return kind is sought or get_origin(kind) is sought or any(_holds(part, sought) for part in get_args(kind) if part is not None)


_CHECKS: Final = (check_models, check_ports, check_sockets, check_tls, check_http_front, check_tensorflow, check_protocols)


def read_command(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerConfig | Page:
    """The command of `arguments` and `environment`: a server, or a page.

    Raises:
        FlagError: they allow no start.
    """
    given = read_flags(spell(arguments), environment)
    if isinstance(given, Page):
        return given
    settings = settings_of(given)
    if settings["api_key"] is None:
        settings["api_key"] = key_of_environment(environment)
    settings["notices"] += unknown_variables(environment, (name for each in flags().values() for name in each.flag.variables))
    config: ServerConfig = built(ServerConfig, settings)
    for check in _CHECKS:
        check(config)
    return dataclasses.replace(config, notices=config.notices + key_notices(config.api_key, is_exposed=has_plain_public_port(config)))
