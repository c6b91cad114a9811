"""`stoker check` and `stoker dump`: commands that read files and need no server.

`check` validates a repository, explains every value of every configuration, and tries to load its models. `dump` shows a compiled file.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.options import AsJson
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_line, print_table, printable

if TYPE_CHECKING:
    from stoker.server.lifecycle.check import ModelReport, RepositoryReport, VersionReport

_EMPTY = "no models: the repository is empty; stoker add FILE adds a model, stoker init FOLDER writes a starter project"


class Links(StrEnum):
    """The links in the repository to follow: the values of the server's flag."""

    NONE = "none"
    WITHIN_ROOT = "within-root"


Repositories = Annotated[
    list[Path], typer.Argument(metavar="REPOSITORY...", help="Model repository; several are checked together.", show_default=False)
]
Suggest = Annotated[bool, typer.Option("--suggest", help="Print for each model a config.pbtxt with all inferred values.")]

Load = Annotated[
    bool | None,
    typer.Option(
        "--load/--no-load",
        help="Load every version, or none, in a separate process as a test. Default: versions with files of up to 64 MiB together.",
        show_default=False,
    ),
]
AllowLinks = Annotated[
    Links, typer.Option("--allow-links", help="As `serve --allow-links`: follow links to targets below the repository's root.")
]
LoadTimeout = Annotated[float, typer.Option("--load-timeout", min=0.1, max=86400, help="Bound on the time of one such load, seconds.")]


def check(
    repositories: Repositories,
    as_json: AsJson = False,
    suggest: Suggest = False,
    load: Load = None,
    load_timeout: LoadTimeout = 120.0,
    allow_links: AllowLinks = Links.NONE,
) -> int:
    """Validate a model repository without serving it: what is written, what is inferred and why, what conflicts, and what does not load."""
    from stoker.backends.api.registry import BackendRegistry
    from stoker.server.lifecycle.check import Loading, check_repository
    from stoker.server.lifecycle.repository import RepositoryUnreadable

    try:
        report = check_repository(
            repositories,
            BackendRegistry(),
            follows_links=allow_links is Links.WITHIN_ROOT,
            loading=Loading.SMALL if load is None else Loading.ALL if load else Loading.NONE,
            timeout_s=load_timeout,
            progress=_show_progress,
        )
    except RepositoryUnreadable as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    finally:
        _show_progress("")
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report, suggest)
    return ExitCode.OK if report.is_good else ExitCode.FAILED


def _show_progress(text: str) -> None:
    """Replaces the previous progress text by `text`, on a terminal only, so that it does not mix with the output."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{printable(text)}")
        sys.stderr.flush()


def _print_report(report: "RepositoryReport", suggest: bool) -> None:
    for model in report.models:
        _print_model(model, suggest)
    for note in report.notes:
        print_line(f"note: {note}")
    bad = sum(1 for model in report.models if model.problems)
    count = f"{len(report.models)} model{'' if len(report.models) == 1 else 's'}"
    if not report.models:
        print_line("no models: every folder was passed over, see the notes" if report.notes else _EMPTY)
    else:
        print_line(f"{count}, {bad} with problems" if bad else f"{count}, no problems")


def _print_model(model: "ModelReport", suggest: bool) -> None:
    config = "config.pbtxt" if model.has_config_file else "no config.pbtxt"
    present = ", ".join(str(version) for version in model.present_versions) or "none"
    policy = f", serves {model.version_policy}" if model.version_policy else ""
    print_line(f"{model.name}: {'PROBLEM' if model.problems else 'ok'} ({config}; versions {present}{policy})")
    for problem in model.problems:
        print_line(f"  error: {problem}")
    for version in model.versions:
        _print_version(version, suggest)
    print_line()


def _print_version(version: "VersionReport", suggest: bool) -> None:
    if version.backend:
        # An error in a note is printed with the problems.
        facts = [note for note in version.notes if note not in version.errors]
        notes = f"; {'; '.join(facts)}" if facts else ""
        file = f"file {version.model_filename}" if version.model_filename else "no model file needed"
        loaded = {True: ", loads", False: ", does not load", None: ""}[version.is_loaded]
        print_line(f"  version {version.version}: backend {version.backend}, {file}{loaded}{notes}")
    if version.untried:
        print_line(f"  note: version {version.version} was not loaded: {version.untried}")
    for warning in version.warnings:
        print_line(f"  warning: {warning}")
    rows = [(finding.kind.value, finding.field, finding.text) for finding in version.findings if finding.text not in version.warnings]
    if rows:
        print_table(("source", "field", "value"), rows)
    if suggest and version.suggestion:
        print_line(f"  suggested config.pbtxt for version {version.version}:")
        for line in version.suggestion.splitlines():
            print_line(f"    {line}")


Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="A model.exec or PopEF file.", show_default=False)]


def dump(files: Files, as_json: AsJson = False) -> None:
    """Print what model.exec and PopEF files hold: inputs, outputs, compiled batches, weights, modelled times. Every byte is checked."""
    from stoker.backends.containers.framing import ContainerError

    try:
        dumped = [_Dumped(path) for path in files]
    except ContainerError as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        print_json({"files": [each.report for each in dumped]})
        return
    for each in dumped:
        for line in each.lines():
            print_line(line)


class _Dumped:
    """A file that was read and is valid."""

    def __init__(self, path: Path) -> None:
        """Reads the file; its first bytes determine the format.

        Raises:
            ContainerError: the format is unknown, or the file is damaged.
        """
        from stoker.backends.containers.framing import ContainerError
        from stoker.backends.containers.record import ByteSource
        from stoker.backends.gcu.dump import report_executable
        from stoker.backends.gcu.executable_layout import FRAMING
        from stoker.backends.ipu.popef.dump import report_file
        from stoker.backends.ipu.popef.messages import POPEF

        source = ByteSource.of_file(path)
        start = source.read_at(0, min(len(FRAMING.magic), source.size))
        self.is_executable = start == FRAMING.magic
        if not self.is_executable and start != POPEF.magic:
            found = f"it begins with {start.hex(' ')}" if start else "it is empty"
            raise ContainerError(f"neither a model.exec nor a PopEF file: {found}", path=source.path)
        self.report: dict[str, Any] = report_executable(path) if self.is_executable else report_file(path)

    def lines(self) -> list[str]:
        """The contents as text."""
        from stoker.backends.gcu.dump import executable_text
        from stoker.backends.ipu.popef.dump import text_of

        return list(executable_text(self.report)) if self.is_executable else text_of(self.report).splitlines()
