"""The command `stoker compile`: converter and compiler with PopRT's arguments.

Exit codes: 0 success; 1 the conversion or compilation failed; 2 the command line is invalid; 3 `--check` found outputs that differ too much
from the source's; 4 `--min_snr` or `--min_speedup` was missed. Every failure is one message on stderr; the traceback is printed only with
`--logging_level DEBUG`.
"""

import contextlib
import errno
import itertools
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version as installed_version
from typing import Any, NoReturn, TextIO

from stoker.compiler.cli_arguments import CommandOptions, Words, YamlConfig, completion_script, parse_words, read_config
from stoker.compiler.convert.converter import load_extensions
from stoker.compiler.convert.options import ConversionOptions, renamed
from stoker.compiler.errors import CheckError, CompileError, GateError, OptionError
from stoker.compiler.job import run_job
from stoker.compiler.option_fields import OptionSpec
from stoker.compiler.plan import all_specs, make_plan
from stoker.compiler.reports import Progress
from stoker.compiler.repository_writer import LoadOnce
from stoker.compiler.target import find_target, target_names

logger = logging.getLogger(__name__)

OK, FAILED, USAGE, CHECK_FAILED, GATE_MISSED, INTERRUPTED = 0, 1, 2, 3, 4, 130
#: Why writing fails where there is no more room.
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def main(
    arguments: Sequence[str] | None = None,
    *,
    default_target: str | None = None,
    program: str = "stoker compile",
    load_once: LoadOnce | None = None,
) -> int:
    """Runs the command line (default: the process's arguments) and returns the exit code.

    Args:
        arguments: Words after the command.
        default_target: Target to use without `--target`; None makes `--target` required.
        program: Name of the command in messages.
        load_once: Loads a version that is to be served before it is written.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_debug = _is_debug(words)
    try:
        _run(words, default_target, program, load_once)
    except CheckError as error:
        return _failed(program, str(error), CHECK_FAILED, is_debug)
    except GateError as error:
        return _failed(program, str(error), GATE_MISSED, is_debug)
    except CompileError as error:
        return _failed(program, str(error), USAGE if isinstance(error, OptionError) else FAILED, is_debug)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed stdout. Write nothing more, not even at exit.
        sys.stderr.close()
        return FAILED
    except SystemExit as error:  # argparse raises this after it printed the help
        return error.code if isinstance(error.code, int) else OK
    except MemoryError:
        return _failed(program, "out of memory", FAILED, is_debug)
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            return _failed(program, _internal(error), FAILED, is_debug)
        return _failed(program, f"stdout cannot be written: {error.strerror}", FAILED, is_debug)
    except Exception as error:  # noqa: BLE001 - a defect of ours is reported in one line too; --logging_level DEBUG adds the traceback
        return _failed(program, _internal(error), FAILED, is_debug)
    return OK


def _internal(error: Exception) -> str:
    return f"internal error: {type(error).__name__}: {error}; --logging_level DEBUG prints the traceback"


def _run(arguments: Sequence[str], default_target: str | None, program: str, load_once: LoadOnce | None) -> None:
    words = parse_words(arguments, program, default_target)
    command = CommandOptions(**words.command)
    if command.version:
        print(f"stoker {installed_version('stoker')}")  # noqa: T201 - what was asked for
        return
    if command.print_completion is not None:
        sys.stdout.write(completion_script(command.print_completion, program))
        return
    with _logging(command.logging_level) as log_from:
        config = read_config(command.config_yaml) if command.config_yaml is not None else YamlConfig()
        command = CommandOptions(**{**config.command, **words.command})
        log_from(command.logging_level)
        _carry_out(command, config, words, default_target, load_once)


def _carry_out(command: CommandOptions, config: YamlConfig, words: Words, default_target: str | None, load_once: LoadOnce | None) -> None:
    job = {**config.job, **_parsed(words)}
    if command.list_all_passes:
        _list_passes(job)
        return
    name = command.target or default_target
    if name is None:
        installed = ", ".join(target_names()) or "none"
        raise OptionError(f"--target is missing (or `target:` in the file of --config_yaml); installed targets: {installed}")
    target = find_target(name)
    plan = make_plan(job, config.models)
    progress = Progress(is_shown=not plan.job.disable_compilation_progress_bar)
    run_job(plan, target, progress, load_once=load_once)


def _parsed(words: Words) -> dict[str, Any]:
    known: Mapping[str, OptionSpec] = all_specs()
    return {name: known[name].parse(value) for name, value in renamed(words.job, known).items()}


def _list_passes(job: Mapping[str, Any]) -> None:
    from stoker.compiler.passes import get_all_pass_names
    from stoker.compiler.passes.registry import pass_class

    load_extensions(ConversionOptions(custom_pass_config=job.get("custom_pass_config", ()), passes=job.get("passes", ())))
    for name in get_all_pass_names():
        sys.stdout.write(f"{name}: {pass_class(name).description()}\n")


@contextlib.contextmanager
def _logging(level: str) -> Iterator[Callable[[str], None]]:
    """Sends the package's log messages from `level` on to stderr, and yields a function that changes the level.

    No other logger changes. Python warnings, which name files of installed packages, are logged at level DEBUG.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    loggers = [logging.getLogger(package) for package in ("stoker.compiler", "stoker.backends")]
    before = [logger.level for logger in loggers]

    def log_from(least: str) -> None:
        for logger in loggers:
            logger.setLevel(least)

    log_from(level)
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _log_warning
            yield log_from
    finally:
        for logger, earlier in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(earlier)


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    """Replaces `warnings.showwarning`."""
    logger.debug("%s:%d: %s: %s", filename, lineno, category.__name__, message)


def _is_debug(words: Sequence[str]) -> bool:
    """Returns whether the arguments ask for tracebacks. The arguments are searched before they are parsed, since parsing may fail too."""
    spelled = [word.replace("-", "_") for word in words]
    return "__logging_level=DEBUG" in spelled or any(pair == ("__logging_level", "DEBUG") for pair in itertools.pairwise(spelled))


def _failed(program: str, message: str, code: int, is_debug: bool) -> int:
    if is_debug:
        traceback.print_exc()
    sys.stderr.write(f"{program}: error: {message}\n")
    return code


def run(
    arguments: Sequence[str] | None = None,
    *,
    default_target: str | None = None,
    program: str = "stoker compile",
    load_once: LoadOnce | None = None,
) -> NoReturn:
    """Calls `main` and ends the process with its exit code."""
    sys.exit(main(arguments, default_target=default_target, program=program, load_once=load_once))


if __name__ == "__main__":
    run()
