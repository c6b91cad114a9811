"""How the help of commands differs from the library's: a flag takes no value, and so none is named behind it."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """The library would name the type `<bool>` behind each flag, `--help` among them, as if a value were to follow."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command that helps in this way."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `TyperCommand`."""
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """The command that has the others."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `TyperGroup`."""
        return _without_types_of_flags(super().get_params(ctx))
