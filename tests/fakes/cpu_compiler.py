"""`stoker compile --target cpu` of the file `model.onnx` in this process."""

from dataclasses import dataclass

import pytest

import stoker.compiler.cli


@dataclass(frozen=True)
class Ran:
    """The result of a command line."""

    code: int
    out: str
    err: str


class Compile:
    """Runs the command line with a batch size of 8 unless the words set one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Ran:
        is_sized = any(word.startswith(("--input_shape", "--batch_size")) for word in words)
        sized = () if is_sized else ("--batch_size", "8", "--batch_axis", "0")
        return self.plainly(*sized, *words)

    def plainly(self, *words: str) -> Ran:
        """The same without a batch size."""
        code = stoker.compiler.cli.main(["--target", "cpu", "-i", "model.onnx", "--disable_compilation_progress_bar", *words])
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)
