"""Converts a command line, the environment and the file of `--config` to a `ServerConfig`.

It accepts `_` for `-`, booleans without a value or with one in the next word, and the flag names of Triton and Adlik.

The parser is part of every start. typer would read the command line through pydantic, which would stay in memory (11 MiB, and a fifth of
the start time, see docs/adr/0066). typer makes the help from the same declarations.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, NamedTuple

from stoker.backends.api.nearest import nearest
from stoker.server.config.model_formats import is_model_file
from stoker.server.core.flag import FALSE, TRUE, BadValue, FlagError, one_of_values
from stoker.server.flags.completion import SHELLS
from stoker.server.flags.config_file import CONFIG, Given, printed, read_file
from stoker.server.flags.network import check_http_front, check_sockets, check_tls
from stoker.server.flags.protocols import API_KEY_VARIABLE, check_protocols, key_notices, key_of_environment
from stoker.server.flags.serving import check_models, check_ports, has_plain_public_port
from stoker.server.flags.table import Declared, boolean_names, built, flags, holds, primary_names, settings_of
from stoker.server.flags.tensorflow import check_tensorflow
from stoker.server.server_config import ServerConfig

_PREFIX: Final = "STOKER_"
#: Variables of other programs: the simulated devices, and the client with its command.
_OF_OTHERS: Final = ("STOKER_SIM_", "STOKER_TLS_", "STOKER_URL", "STOKER_API_KEY", "STOKER_HEADERS", "STOKER_MODELS")
#: Variables that Kubernetes sets in every container for a service named stoker, or stoker-something.
_OF_SERVICES: Final = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT_")
_ADDRESSES: Final = ("tcp://", "udp://", "sctp://")


def meant(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """`; did you mean X?` for the end of an error, X with `prefix` before it; empty if none of the names `known` is near."""
    found = nearest(name, sorted(known))
    return f"; did you mean {prefix}{found[0]}?" if found else ""


def unknown_variables(environment: Mapping[str, str], known: Iterable[str]) -> tuple[str, ...]:
    """A line for each variable with the prefix of flags that sets none. The value, which may be a secret, is not shown.

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
    """A flag whose value is a part of another flag's value.

    Attributes:
        flag: The other flag.
        beginning: The text before the value in the other flag's value.
    """

    flag: str
    beginning: str


#: Triton's older flags, each of which sets one value.
PIECES: Final = {
    "trace-file": Piece("trace-config", "triton,file="),
    "trace-log-frequency": Piece("trace-config", "triton,log-frequency="),
    "trace-level": Piece("trace-config", "level="),
    "trace-rate": Piece("trace-config", "rate="),
    "trace-count": Piece("trace-config", "count="),
}
#: Flags that take no value.
BARE = frozenset({"help", "version", "print-config"})
#: The flag that prints the configuration instead of starting a server.
PRINT_CONFIG = "print-config"
#: The flag that prints the completion script of the shell that is its value.
SHOW_COMPLETION = "show-completion"
#: The flag for words that belong to no flag, as returned by `spell`.
STRAY = "unexpected-argument"
#: The flag for words that are the path of a file or folder, as returned by `spell`.
PATH = "model-path"


def spell(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with every flag under its primary name, with dashes, and every boolean flag with its value attached.

    A word that is neither a flag nor the value of one becomes the value of `PATH` if it is the path of a file or folder, else of `STRAY`;
    `reject_stray` names it in the error.
    """
    spelled: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*spelled, word, *rest]
        if not word.startswith("-"):
            spelled.append(f"--{PATH if Path(word).exists() else STRAY}={word}")
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
    """Rejects stray words before any value is read: a stray word may be the value that another flag lacks."""
    for word in words:
        is_path = os.sep in word or is_model_file(word)
        raise FlagError(f"unexpected argument '{word}': " + ("no such file or folder" if is_path else "flags are --name=value"))


class Page(Enum):
    """A page to print instead of starting a server."""

    HELP = auto()
    VERSION = auto()
    BASH_COMPLETION = auto()
    ZSH_COMPLETION = auto()
    FISH_COMPLETION = auto()


#: The pages of flags without a value.
PAGES: Final = {"help": Page.HELP, "version": Page.VERSION}


def read_flags(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any] | Page:
    """The values of the given flags by name, from `words`, else from `environment`, else from the file of `--config`; or the page that
    `words` request.

    Args:
        words: As `spell` returns them.
        environment: Variables by name.

    Raises:
        FlagError: an unknown flag, a stray word, or a value that is missing or cannot be read.
    """
    given = _given(_by_flag(words), environment)
    return given if isinstance(given, Page) else _values(given)


def _given(found: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> dict[str, Given] | Page:
    """The texts of the given flags by name, in the order of `flags`; or the page that the command line requests.

    Args:
        found: As `_by_flag` returns it.
        environment: Variables by name.

    Raises:
        FlagError: a stray word, or an error in the file of `--config`.
    """
    for name, texts in found.items():  # in the order given
        if name in PAGES:
            return PAGES[name]
        if name == SHOW_COMPLETION:
            return _completion(texts[-1])
        if name == STRAY:
            reject_stray(texts)
    given = {name: Given(texts, f"--{name}=", "command line") for name, texts in found.items() if name in flags()}
    for name, each in flags().items():
        variable = next((one for one in each.flag.variables if environment.get(one)), None)
        if name not in given and variable is not None:
            given[name] = Given(_pieces(each.kind, environment[variable]), f"{variable}=", variable)
    of_file = read_file(Path(given[CONFIG].texts[-1])) if CONFIG in given else {}
    return {name: (given if name in given else of_file)[name] for name in flags() if name in given or name in of_file}


def _completion(shell: str) -> Page:
    if shell not in SHELLS:
        raise FlagError(f"--{SHOW_COMPLETION}={shell}: expected {one_of_values(SHELLS)}")
    return Page[f"{shell.upper()}_COMPLETION"]


def _values(given: Mapping[str, Given]) -> dict[str, Any]:
    return {name: _value(flags()[name], each) for name, each in given.items()}


def _by_flag(words: Sequence[str]) -> dict[str, list[str]]:
    """The texts given for each flag, by the flag's name."""
    names = {*flags(), STRAY, SHOW_COMPLETION, *BARE}
    found: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            reject_stray(list(rest))
            break
        if not word.startswith("--"):  # one dash: `spell` has converted every other word to a flag or its value
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


def _value(declared: Declared, given: Given) -> Any:
    """The value of `given`; the last text counts, unless the flag takes a list."""
    read: Callable[[str], Any] = declared.flag.parser or (Path if holds(declared.kind, Path) else str)
    try:
        if holds(declared.kind, list):
            return [read(text) for text in given.texts]
        return read(given.texts[-1])
    except BadValue as error:
        raise FlagError(f"{given.source}{error.text}: expected {error.expected}") from None


def _pieces(kind: Any, text: str) -> list[str]:
    """The values in a variable that holds a list: one path on each line (a path may contain any other separator), or texts separated by
    blanks.
    """
    if not holds(kind, list):
        return [text]
    pieces = text.splitlines() if holds(kind, Path) else text.split()
    return [piece.strip() for piece in pieces if piece.strip()]


_CHECKS: Final = (check_models, check_ports, check_sockets, check_tls, check_http_front, check_tensorflow, check_protocols)


def read_command(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerConfig | Page | str:
    """The result of `arguments` and `environment`: a configuration of a server, a page, or the text that `--print-config` prints.

    Raises:
        FlagError: the server cannot start with them.
    """
    found = _by_flag(spell(arguments))
    given = _given(found, environment)
    if isinstance(given, Page):
        return given
    settings = settings_of(_values(given))
    if settings["api_key"] is None:
        settings["api_key"] = key_of_environment(environment)
    settings["notices"] += unknown_variables(environment, (name for each in flags().values() for name in each.flag.variables))
    config: ServerConfig = built(ServerConfig, settings)
    for check in _CHECKS:
        check(config)
    if PRINT_CONFIG in found:
        return printed(given, has_key_variable=API_KEY_VARIABLE in environment)
    return dataclasses.replace(config, notices=config.notices + key_notices(config.api_key, is_exposed=has_plain_public_port(config)))
