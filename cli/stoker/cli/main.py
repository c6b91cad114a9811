"""The `stoker` command.

Commands import what they need when they run, so that `stoker --help` needs neither the server nor the client. All words after `stoker
serve` or `stoker compile` are passed on unchanged. Exit codes: 0: success; 1: the command failed; 2: usage error; 3: the server cannot be
reached; 130: interrupted.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from typing import Annotated, NoReturn

import typer

from stoker.cli.add.command import add
from stoker.cli.bench.command import bench
from stoker.cli.control import load, unload
from stoker.cli.device_check.command import device_check
from stoker.cli.env import build
from stoker.cli.files import check, dump
from stoker.cli.infer import infer
from stoker.cli.init import init
from stoker.cli.models import config, metadata, models
from stoker.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, ApiKey, AsJson, Command, Group, Headers, Timeout, Url
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_line, printable
from stoker.cli.plan.command import plan
from stoker.cli.status import status
from stoker.cli.written_version import load_once

#: Options with a value that all commands with a server connection have.
_SHARED = ("--url", "--api-key", "--header", "--timeout")

#: The prefix of error messages from the option parser.
_LIBRARY_WORDS = "Value error, "

_COMPILE_HELP = """usage: stoker compile --target TARGET -i MODEL [options]

Convert an ONNX model and compile it for an IPU, a GCU or a CPU.

The compiler is an optional part of Stoker and is not installed here (the package {package} is missing).
  pip install 'stoker[compile]'      installs it
  stoker compile --help              then lists all options
"""
_COMPILE_PACKAGES = frozenset({"onnx", "onnx_ir", "onnxscript", "ml_dtypes"})

app = typer.Typer(
    name="stoker",
    cls=Group,
    help="Serve models, or call a model server. The options of the server connection and --json may precede or follow the command. "
    "Flags may be spelled with - or _.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    is_version_requested: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    # Declared so that the help lists them; `_hoisted` moves options that precede the command behind it.
    if is_version_requested:
        print_line(f"stoker {installed_version('stoker')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(context: typer.Context) -> None:
    """Serve a model repository: the `serve` command, with all its flags (see `stoker serve --help`)."""
    _serve(context.args)


@app.command("compile", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def compile_model(context: typer.Context) -> None:
    """Convert and compile an ONNX model for an IPU, a GCU or a CPU (see `stoker compile --help`)."""
    _compile(context.args)


def version(as_json: AsJson = False) -> None:
    """Print the installed versions."""
    versions = {name: installed_version(name) for name in ("stoker", "stoker-client")}
    if as_json:
        print_json(versions)
    else:
        for name, text in versions.items():
            print_line(f"{name} {text}")


for _command in (init, add, check, dump, plan, device_check, models, status, infer, bench, metadata, config, load, unload, version):
    app.command(cls=Command)(_command)

_environments = typer.Typer(name="env", cls=Group, help="Environments of models written in Python.", no_args_is_help=True)
_environments.command(cls=Command)(build)
app.add_typer(_environments)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line (default: that of the process) and ends the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["serve"]:
        _serve(words[1:])
    try:
        if words[:1] == ["compile"]:
            _compile(words[1:])
        code = app(_hoisted(_spelled(words)), prog_name="stoker", standalone_mode=False)
    except CommandFailed as failure:
        _fail(failure.message, failure.exit_code)
    except typer.Abort:
        _fail("aborted", ExitCode.FAILED)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output has closed the pipe. Nothing may be written any more, not even at exit.
        sys.stderr.close()
        sys.exit(ExitCode.FAILED)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a usage error of typer's but a defect
            raise
        _fail(error.format_message().replace(_LIBRARY_WORDS, ""), ExitCode.USAGE)
    sys.exit(code if isinstance(code, int) else ExitCode.OK)


def _compile(arguments: Sequence[str]) -> NoReturn:
    """Runs the compiler and ends the process with its exit code.

    Raises:
        CommandFailed: the packages that compiling needs are not installed.
    """
    try:
        from stoker.compiler.cli import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _COMPILE_PACKAGES:
            raise
        if {"--help", "-h"} & set(arguments):
            sys.stdout.write(_COMPILE_HELP.format(package=error.name))
            sys.exit(0)
        raise CommandFailed(f"compiling needs the package {error.name}: install stoker with its extra, 'stoker[compile]'") from error
    sys.exit(main(arguments, load_once=load_once))


def _serve(arguments: Sequence[str]) -> NoReturn:
    from stoker.server.main import main as serve_main

    serve_main(arguments)


def _spelled(words: Sequence[str]) -> list[str]:
    """Spells every flag with dashes: `--api_key` is `--api-key`. Words after `--` are unchanged."""
    end = words.index("--") if "--" in words else len(words)
    spelled = []
    for word in words[:end]:
        name, equals, value = word.partition("=")
        spelled.append(name.replace("_", "-") + equals + value if word.startswith("--") else word)
    return [*spelled, *words[end:]]


def _hoisted(words: Sequence[str]) -> list[str]:
    """Moves options before the command behind it: `--url X models` becomes `models --url X`."""
    at = 0
    while at < len(words) and words[at].partition("=")[0] in (*_SHARED, "--json"):
        at += 1 if "=" in words[at] or words[at] == "--json" else 2
    return [*words[at : at + 1], *words[:at], *words[at + 1 :]] if at < len(words) else list(words)


def _fail(message: str, code: ExitCode) -> NoReturn:
    print(f"stoker: error: {' '.join(printable(message).split())}", file=sys.stderr)  # noqa: T201 - the one line that a failed command prints
    sys.exit(code)


if __name__ == "__main__":
    main()
