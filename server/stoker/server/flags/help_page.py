"""The page that --help prints, made by typer from the declarations of the flags. Only for a process that then exits."""

import inspect
from typing import Annotated, Any

import rich.columns
import typer
import typer.rich_utils
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from stoker.server.core.flag import Flag, one_of_values
from stoker.server.flags.completion import SHELLS
from stoker.server.flags.table import Declared, flags

#: Least width of the help texts, in characters; the columns of names are broken rather than the texts.
_TEXT_WIDTH = 16


#: Flags that print something and start no server: placeholder and help text.
_PAGES = {
    "print_config": ("", "Print the effective configuration as a file for --config, with the origin of each value."),
    "show_completion": ("SHELL", f"Print a script that completes flags in {one_of_values(SHELLS)}."),
}


class FoldingTable(Table):
    """A table that keeps the words of its first columns whole if there is space, and breaks long words instead of cutting them."""

    def add_row(self, *args: Any, **kwargs: Any) -> None:
        super().add_row(*args, **kwargs)
        for column in self.columns:
            column.overflow = "fold"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max((console.measure(cell).maximum for cell in column.cells), default=0) for column in self.columns]
        # Columns for properties that no flag here has, such as a short name, would take two characters each.
        self.columns = [column for column, width in zip(self.columns, widths, strict=True) if width]
        *names, _ = self.columns
        fits = sum(widths[:-1]) + self._extra_width + _TEXT_WIDTH <= options.max_width
        for column in names:
            column.no_wrap = fits
        return super().__rich_console__(console, options)


def print_help() -> None:
    """Prints the page of `serve --help`."""
    for module in (typer.rich_utils, rich.columns):  # typer has no setting for its tables
        vars(module)["Table"] = FoldingTable
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(name="serve")(_described())
    app(["--help"], prog_name="serve", standalone_mode=False)


def _described() -> Any:
    """A command with all flags that does nothing."""

    def serve(**_given: Any) -> None:
        """Serves a model repository over gRPC and REST.

        Flags may be spelled with - or _, as --name=value or --name value, and set by environment as STOKER_NAME, or in
        the YAML file of --config.
        """

    names = {name: name.replace("-", "_") for name in flags()}
    kinds = {names[name]: _typed(each.flag) for name, each in flags().items()}
    values = {names[name]: _shown(each) for name, each in flags().items()}
    # Defined here, so that they are listed with the flags and not where typer would put its own.
    for name, (metavar, text) in _PAGES.items():
        kinds[name] = Annotated[Any, typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, parser=str, help=text)]
    kinds["asked_version"] = Annotated[bool, typer.Option("--version", metavar="", help="Print the version.")]
    kinds["asked_help"] = Annotated[
        bool, typer.Option("--help", metavar="", help="Print this page and exit.", is_eager=True, callback=_print_page)
    ]
    values |= {**dict.fromkeys(_PAGES), "asked_version": False, "asked_help": False}
    # typer reads a command's parameters from its signature: these are the flags.
    serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=values[name], annotation=kind) for name, kind in kinds.items()]
    )
    serve.__annotations__ = kinds
    return serve


def _print_page(context: typer.Context, is_requested: bool) -> None:
    if is_requested:
        typer.echo(context.get_help())
        raise typer.Exit


def _shown(declared: Declared) -> Any:
    """The default for the help."""
    return declared.flag.shown(declared.default) if declared.flag.shown else declared.default


def _typed(flag: Flag) -> Any:
    """An annotation with the typer option of the flag."""
    described = typer.Option(
        f"--{flag.name}",
        help=flag.text,
        rich_help_panel=flag.panel,
        metavar=flag.metavar,
        parser=flag.parser or str,
        hidden=flag.hidden,
        show_default=flag.show_default,
    )
    return Annotated[Any, described]
