"""The typer command that the groups of flags make together."""

import dataclasses
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from server.flags.environment import unknown_variables
from server.flags.groups import GROUPS, FlagGroup, annotations, defaults
from server.flags.rules import check_models, check_ports
from server.flags.sockets import check_sockets
from server.flags.spelling import STRAY, refuse_stray
from server.server_config import ServerConfig


def _print_help(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        # Imported late: the tables of the help take time that a start needs not spend.
        from server.flags.folded_help import fold_help

        fold_help()
        typer.echo(context.get_help())
        raise typer.Exit


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"stoker {version('stoker')}")
        raise typer.Exit


_VERSION = typer.Option("--version", is_eager=True, callback=_show_version, metavar="", help="Print the version.")
_HELP = typer.Option("--help", is_eager=True, callback=_print_help, metavar="", help="Show this and exit.")
_STRAY = typer.Option(STRAY, hidden=True, is_eager=True, callback=refuse_stray)
#: Words that act by themselves: by parameter, its type and default.
_WORDS: dict[str, tuple[Any, Any]] = {
    "version": (Annotated[bool, _VERSION], False),
    "asked_help": (Annotated[bool, _HELP], False),
    "stray": (Annotated[list[str] | None, _STRAY], None),
}


def command(run: Callable[[ServerConfig], None]) -> Callable[..., None]:
    """The typer command that builds a `ServerConfig` and passes it to `run`."""

    def serve(**given: Any) -> None:
        """Serves a model repository over gRPC and REST.

        Flags may be spelled with - or _, as --name=value or --name value, and set by environment as STOKER_NAME.
        """
        settings: dict[str, Any] = {}
        notices: list[str] = []
        for kind in GROUPS:
            group: FlagGroup = kind(**{field.name: given[field.name] for field in dataclasses.fields(kind)})
            of_group = group.settings()
            notices += of_group.pop("notices", ())
            settings |= of_group
        notices += unknown_variables(os.environ, (name for kind in annotations().values() for name in kind.__metadata__[0].envvar or ()))
        config = ServerConfig(**settings, notices=tuple(notices))
        check_models(config)
        check_ports(config)
        check_sockets(config)
        run(config)

    kinds = annotations() | {name: kind for name, (kind, _) in _WORDS.items()}
    values = defaults() | {name: value for name, (_, value) in _WORDS.items()}
    # typer reads a command's parameters from its signature: here they are those of all groups.
    serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=values.get(name, inspect.Parameter.empty), annotation=kind)
            for name, kind in kinds.items()
        ]
    )
    serve.__annotations__ = kinds
    return serve
