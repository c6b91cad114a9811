"""`serve`: the command that starts a server.

Exit codes: 0 after a drained shutdown; 1 if a second signal cut it short, or a model failed under --exit-on-error; 2 for a bad flag, an
occupied port or an unreadable repository, always with one line that gives the reason.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from stoker.server.process_start import exit_at_once_on_signal, open_standard_streams

if TYPE_CHECKING:
    from stoker.server.server_config import ServerConfig

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line (default: the process's own) and ends the process."""
    exit_at_once_on_signal()
    open_standard_streams()
    # Imported late: a signal that arrives while the server is still being imported ends the process with code 0 too.
    from stoker.server.core.flag import FlagError
    from stoker.server.flags.command import Page, read_command

    try:
        command = read_command(sys.argv[1:] if arguments is None else arguments, os.environ)
    except FlagError as error:
        _fail(str(error))
    if command is Page.HELP:
        from stoker.server.flags.help_page import print_help

        print_help()
    elif command is Page.VERSION:
        from importlib.metadata import version

        from stoker.server.core.build_kind import BUILD

        print(f"stoker {version('stoker')} ({BUILD})")  # noqa: T201 - what was asked for
    elif isinstance(command, str):
        sys.stdout.write(command)
    elif isinstance(command, Page):
        from stoker.server.flags.completion import completion_script

        sys.stdout.write(completion_script(command.name.partition("_")[0].lower()))
    else:
        sys.exit(_run(command))
    sys.exit(0)


def _run(config: "ServerConfig") -> int:
    # Imported late: --help, --version and errors in flags need none of the server.
    from stoker.server.app import StartError, run

    try:
        return run(config)
    except StartError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    print(f"serve: error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line that a rejected start prints
    sys.exit(USAGE_ERROR)


if __name__ == "__main__":
    main()
