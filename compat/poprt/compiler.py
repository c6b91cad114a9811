"""`poprt.compiler`: converted models to executables.

What does not compile is a `RuntimeError`, as scripts expect that look for "Out of memory on tile" in it.
"""

import dataclasses
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import onnx
from stoker_compat.sources import ModelSource, as_model

from stoker.backends.ipu.compile.assemble import warn_of_no_effect
from stoker.backends.ipu.compile.compiler import as_source, compile_into
from stoker.backends.ipu.runtime import DeviceManager
from stoker.backends.ipu.runtime import Executable as RuntimeExecutable
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions as StokerOptions

#: One converted model, or several that are to be fused.
Models = ModelSource | Sequence[ModelSource]


class CompilerOptions:
    """Stoker's `CompilerOptions` whose fields can be set one by one; a name that does not exist is rejected."""

    __slots__ = tuple(field.name for field in dataclasses.fields(StokerOptions))

    def __init__(self, **values: Any) -> None:
        """The defaults, but for `values`.

        Raises:
            AttributeError: there is no option of that name.
        """
        defaults = StokerOptions()
        for name in self.__slots__:
            setattr(self, name, getattr(defaults, name))
        for name, value in values.items():
            setattr(self, name, value)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Creates options from values by name."""
        return cls(**values)

    if TYPE_CHECKING:  # the fields are slots with the names of Stoker's options

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def to_dict(self) -> dict[str, Any]:
        """Returns every option by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"CompilerOptions({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def frozen(self) -> StokerOptions:
        """As Stoker's compiler takes them; without a version, for the devices that are there."""
        values = self.to_dict()
        values["ipu_version"] = self.ipu_version or DeviceManager().ipu_hardware_version()
        values["opaque_blobs"] = _as_bytes(self.opaque_blobs)
        return StokerOptions(**values)


class Executable(RuntimeExecutable):
    """A compiled model: Stoker's `Executable`, to which opaque blobs can be added."""

    def append_opaque_blobs(self, blobs: Mapping[str, bytes | str]) -> None:
        """Adds opaque blobs to the model in memory; its file stays as it is."""
        self.model = dataclasses.replace(self.model, opaques={**self.model.opaques, **_as_bytes(blobs)})


class Compiler:
    """Compiles converted models."""

    @staticmethod
    def compile(model: Models, outputs: Sequence[str] = (), options: CompilerOptions | None = None) -> Executable:
        """Compiles in memory.

        Args:
            model: A path, bytes or `ModelProto`; a list of them is fused into one executable.
            outputs: The outputs wanted; empty for all.
            options: By default the defaults.

        Raises:
            RuntimeError: it does not compile; the text says why.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "executable.popef")
            Compiler.compile_and_export(model, outputs, path, options)
            return Executable(io.BytesIO(path.read_bytes()))

    @staticmethod
    def compile_and_export(
        model: Models, outputs: Sequence[str], filename: str | os.PathLike[str], options: CompilerOptions | None = None
    ) -> None:
        """Compiles into the PopEF file `filename`.

        Raises:
            RuntimeError: it does not compile, or the file cannot be written; the text says why.
        """
        with _runtime_errors():
            frozen = (options or CompilerOptions()).frozen()
            warn_of_no_effect(frozen)
            compile_into(_sources(model, outputs), frozen, Path(filename))

    @staticmethod
    def compile_and_get_summary_report(
        model: Models, outputs: Sequence[str] = (), options: CompilerOptions | None = None, reset_profile: bool = True
    ) -> str:
        """The summary report as JSON text: memory by tile, cycles by operator, time line. `reset_profile` changes nothing here.

        Raises:
            RuntimeError: it does not compile; the text says why.
        """
        from stoker.backends.ipu.compile.summary_report import summary_report

        with _runtime_errors():
            return summary_report(_sources(model, outputs), (options or CompilerOptions()).frozen()).to_json()


def _sources(model: Models, outputs: Sequence[str]) -> list[Any]:
    models = [model] if isinstance(model, str | os.PathLike | bytes | onnx.ModelProto) else list(model)
    wanted = outputs if len(models) == 1 else ()
    return [as_source(as_model(each), wanted) for each in models]


def _as_bytes(blobs: Mapping[str, bytes | str]) -> dict[str, bytes]:
    return {name: content.encode() if isinstance(content, str) else content for name, content in blobs.items()}


@contextmanager
def _runtime_errors() -> Iterator[None]:
    try:
        yield
    except CompileError as error:
        raise RuntimeError(str(error)) from error
