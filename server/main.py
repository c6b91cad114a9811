"""`serve`: the command that starts a server.

Exit codes: 0 after a drained shutdown; 1 if a second signal cut it short, or a model failed under --exit-on-error; 2 for a bad flag, an
occupied port or an unreadable repository, always with one line that says which.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from server.shutdown import exit_at_once_on_signal

if TYPE_CHECKING:
    from server.server_config import ServerConfig

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line (default: the process's own) and ends the process."""
    exit_at_once_on_signal()
    # Imported late: a signal that comes while the server is still being imported ends it as quietly as any other.
    import typer

    from server.flags.command import command
    from server.flags.spelling import spell

    app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.command(name="serve")(command(_run))
    try:
        words = spell(sys.argv[1:] if arguments is None else arguments)
        code = app(words, prog_name="serve", standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a usage error of typer's: a defect, shown as one
            raise
        _fail(error.format_message())
    sys.exit(code if isinstance(code, int) else 0)


def _run(config: "ServerConfig") -> None:
    # Imported late: --help, --version and a bad flag need none of the server.
    from server.app import StartError, run

    try:
        raise SystemExit(run(config))
    except StartError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    print(f"serve: error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line that a refused start prints
    sys.exit(USAGE_ERROR)


if __name__ == "__main__":
    main()
