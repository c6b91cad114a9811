"""Options that several commands share, and the classes of commands that print the help."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

DEFAULT_URL = "grpc://127.0.0.1:8500"
DEFAULT_TIMEOUT_S = 30.0

_SERVER = "Server"

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="STOKER_URL",
        rich_help_panel=_SERVER,
        help="grpc://host:port (or host:port), grpcs://, http://, https:// or unix:/path.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="STOKER_API_KEY", rich_help_panel=_SERVER, help="Key to send as 'authorization: Bearer KEY'."),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME=VALUE",
        envvar="STOKER_HEADERS",
        rich_help_panel=_SERVER,
        help="Header to send with every call (gRPC: metadata), such as the key of a restricted API; may be repeated.",
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.001, rich_help_panel=_SERVER, help="Time limit of each call to the server.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Model = Annotated[str, typer.Argument(help="Model name.", show_default=False)]
Version = Annotated[int | None, typer.Option("--version", min=0, help="Model version; default: the server's choice.", show_default=False)]


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Removes the type `<bool>` that the library would print behind each flag, including `--help`, as if a value followed."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command with this form of help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `TyperCommand`."""
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """The group of all commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `TyperGroup`."""
        return _without_types_of_flags(super().get_params(ctx))
