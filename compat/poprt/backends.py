"""`poprt.backends`: models behind a session of three calls, `load`, `get_io_info` and `run`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnxruntime
from stoker_compat.sources import ModelSource, as_model

from poprt.compiler import Compiler, CompilerOptions
from stoker.backends.ipu.runtime import ModelRunner, RuntimeConfig

Array = npt.NDArray[Any]
#: Shape and dtype by name.
IoInfo = dict[str, tuple[list[int], "np.dtype[Any]"]]


class Backend:
    """A converted model, compiled when it is loaded and run on a simulated IPU."""

    def __init__(
        self,
        model: ModelSource,
        export_popef: bool = False,
        compiler_options: CompilerOptions | Mapping[str, Any] | None = None,
        runtime_options: RuntimeConfig | Mapping[str, Any] | None = None,
        align_output_dtype: bool = False,
        output_dir: str | os.PathLike[str] = "./",
    ) -> None:
        """Takes the model; `load` compiles it.

        Args:
            model: A path, bytes or `ModelProto`.
            export_popef: Whether the executable is also written, as `executable.popef` in `output_dir`.
            compiler_options: Options, or their values by name.
            runtime_options: Likewise.
            align_output_dtype: Whether FP16 outputs come back as FP32.
            output_dir: See `export_popef`.
        """
        self._model = model
        self._compiler_options = (
            compiler_options if isinstance(compiler_options, CompilerOptions) else CompilerOptions(**(compiler_options or {}))
        )
        self._config = runtime_options if isinstance(runtime_options, RuntimeConfig) else RuntimeConfig(**(runtime_options or {}))
        self._aligns = align_output_dtype
        self._exported = Path(output_dir, "executable.popef") if export_popef else None
        self._runner: ModelRunner | None = None

    def load(self) -> Self:
        """Compiles the model and takes a device, once.

        Raises:
            RuntimeError: it does not compile.
            IpuRuntimeError: no device fits, or none is free.
        """
        self._loaded()
        return self

    def get_io_info(self) -> tuple[IoInfo, IoInfo]:
        """Returns shapes and dtypes of the inputs and of the outputs, by name."""
        runner = self._loaded()
        inputs = {each.name: (list(each.shape), each.numpy_data_type()) for each in runner.get_execute_inputs()}
        outputs = {each.name: (list(each.shape), self._given_as(each.numpy_data_type())) for each in runner.get_execute_outputs()}
        return inputs, outputs

    def run(self, output_names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """Runs the model and returns the named outputs in that order; None: all.

        Raises:
            IpuRuntimeError: the inputs do not fit, or the device failed.
        """
        outputs = self._loaded().execute(inputs)
        found = [outputs[name] for name in (output_names or list(outputs))]
        return [each.astype(self._given_as(each.dtype), copy=False) for each in found]

    def close(self) -> None:
        """Releases the device."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _loaded(self) -> ModelRunner:
        if self._runner is None:
            if self._exported is None:
                self._runner = ModelRunner(Compiler.compile(self._model, (), self._compiler_options), self._config)
            else:
                Compiler.compile_and_export(self._model, (), self._exported, self._compiler_options)
                self._runner = ModelRunner(self._exported, self._config)
        return self._runner

    def _given_as(self, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
        return np.dtype(np.float32) if self._aligns and dtype == np.float16 else dtype


class ORTBackend:
    """The constructor and `run` of `onnxruntime.InferenceSession`, on a simulated IPU; session options and providers are ignored."""

    def __init__(
        self,
        path_or_bytes: ModelSource,
        sess_options: object = None,
        providers: object = None,
        provider_options: object = None,
        *,
        lazy_load: bool = False,
        **options: Any,
    ) -> None:
        """Compiles the model, unless `lazy_load`: then the first `run` does. `options` are those of `Backend`."""
        self._backend = Backend(path_or_bytes, **options)
        if not lazy_load:
            self._backend.load()

    def load(self) -> Self:
        """Compiles the model, once; raises as `Backend.load`."""
        self._backend.load()
        return self

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Array], run_options: object = None) -> list[Array]:
        """As `Backend.run`."""
        return self._backend.run(output_names, input_feed)


class OnnxRuntimeSession:
    """`Backend`'s calls on ONNX Runtime's CPU provider, to compare with."""

    def __init__(self, model: ModelSource) -> None:
        self._model = model
        self._session: Any = None

    def load(self) -> Self:
        """Reads the model, once.

        Raises:
            CompileError: it cannot be read.
        """
        if self._session is None:
            self._session = onnxruntime.InferenceSession(as_model(self._model).SerializeToString(), providers=["CPUExecutionProvider"])
        return self

    def get_io_info(self) -> tuple[IoInfo, IoInfo]:
        """Shapes and dtypes of the inputs and of the outputs, by name; dimensions that vary are as the model names them."""
        self.load()
        return _io_info(self._session.get_inputs()), _io_info(self._session.get_outputs())

    def run(self, output_names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs named, in that order; None: all."""
        self.load()
        return list(self._session.run(output_names, dict(inputs)))


def _io_info(declared: Sequence[Any]) -> IoInfo:
    numpy_names = {"float": "float32", "double": "float64"}
    kinds = {each.name: each.type.removeprefix("tensor(").removesuffix(")") for each in declared}
    return {each.name: (each.shape, np.dtype(numpy_names.get(kinds[each.name], kinds[each.name]))) for each in declared}
