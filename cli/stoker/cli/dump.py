"""`stoker dump`: what compiled files hold, whichever device they are for; every byte is checked on the way."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli.failure import CommandFailed
from stoker.cli.options import AsJson
from stoker.cli.output import print_json, print_line

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
    """One file that was read and found whole."""

    def __init__(self, path: Path) -> None:
        """Reads it by the bytes that it begins with.

        Raises:
            ContainerError: it is of no known format, or damaged.
        """
        from stoker.backends.containers.framing import ContainerError
        from stoker.backends.containers.record import ByteSource
        from stoker.backends.gcu.dump import report_executable
        from stoker.backends.gcu.executable_layout import FRAMING
        from stoker.backends.ipu.popef.dump import report_file
        from stoker.backends.ipu.popef.layout import POPEF

        source = ByteSource.of_file(path)
        start = source.read_at(0, min(len(FRAMING.magic), source.size))
        self.is_executable = start == FRAMING.magic
        if not self.is_executable and start != POPEF.magic:
            found = f"it begins with {start.hex(' ')}" if start else "it is empty"
            raise ContainerError(f"neither a model.exec nor a PopEF file: {found}", path=source.path)
        self.report: dict[str, Any] = report_executable(path) if self.is_executable else report_file(path)

    def lines(self) -> list[str]:
        """For people."""
        from stoker.backends.gcu.dump import executable_text
        from stoker.backends.ipu.popef.dump import text_of

        return list(executable_text(self.report)) if self.is_executable else text_of(self.report).splitlines()
