"""See `poprt`."""

from pathlib import Path

import onnx

from tests.fakes.fake_ipu_runtime import MAGIC


class CompilerOptions:
    """Holds what it is given."""


class Compiler:
    """Writes the graph as a file of the fake runtime."""

    @staticmethod
    def compile_and_export(model: onnx.ModelProto, outputs: list[str], filename: str, options: CompilerOptions | None = None) -> None:
        Path(filename).write_bytes(MAGIC + model.SerializeToString())
