"""`TypedInstance`: a model of the lighter form, a typed function `predict` or a class with such a method."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, cast

import numpy as np

from stoker.backends.api.backend import Arrays, LoadRequest, Parameters
from stoker.backends.api.errors import BackendFailed, InvalidRequest, ModelLoadError
from stoker.backends.api.layout import Array
from stoker.backends.api.model import VARIABLE, ModelSignature
from stoker.backends.api.streaming import StreamingInstance
from stoker.backends.python.event_loop import EventLoopThread
from stoker.backends.python.importing import ModelImport, load_failure
from stoker.backends.python.tensors import as_bytes_array
from stoker.backends.python.typed_signature import ENTRY, TypedSignature, TypedTensor, read_signature
from stoker.models.context import Context

#: Streams that an instance with an async generator runs at once, unless the parameter `streams` says otherwise.
ASYNC_STREAMS: Final = 16


class TypedModel:
    """The function or class that is the model, and its signature.

    Attributes:
        signature: What its annotations say.
        model_class: The class; None: the model is a function.
        function: The function, or the class's method.
    """

    def __init__(self, function: Callable[..., Any], signature: TypedSignature, model_class: "Callable[..., Any] | None") -> None:
        self.function = function
        self.signature = signature
        self.model_class = model_class

    @staticmethod
    def of(module: ModuleType, filename: str) -> "TypedModel":
        """Finds the model in the module of its file.

        Raises:
            ModelLoadError: there is none or more than one, or an annotation is wrong; the message names the line.
        """
        function = vars(module).get(ENTRY)
        if inspect.isfunction(function):
            return TypedModel(function, read_signature(function, filename), None)
        classes = [
            each
            for name, each in vars(module).items()
            if inspect.isclass(each) and each.__module__ == module.__name__ and not name.startswith("_") and hasattr(each, ENTRY)
        ]
        if len(classes) != 1:
            found = f"the classes {', '.join(each.__name__ for each in classes)}" if classes else "neither"
            raise ModelLoadError(
                f"{filename}: expected a function '{ENTRY}', one class with a method '{ENTRY}', or a class TritonPythonModel; found {found}"
            )
        method = getattr(classes[0], ENTRY)
        if not inspect.isfunction(method):
            raise ModelLoadError(f"{filename}: {classes[0].__name__}.{ENTRY} must be an ordinary method")
        return TypedModel(method, read_signature(method, filename, owner=classes[0]), classes[0])


class TypedInstance(StreamingInstance):
    """One function, or one object of the class. Confined to: the one worker that owns it."""

    def __init__(self, request: LoadRequest, module: ModuleType, model_import: ModelImport, model: TypedModel, streams: int | None) -> None:
        """Makes the object of the class. REQUIRES: `model_import` is active.

        Args:
            request: The load.
            module: The module of the model's file.
            model_import: Its modules.
            model: What `TypedModel.of` found in it.
            streams: Streams that run at once; None: 16 of an async generator, else 1.

        Raises:
            ModelLoadError: the class raised, or the served signature is not the annotations'.
        """
        _check_served(request.signature, model.signature, request.model_filename)
        self._module = module
        self._import = model_import
        self._signature = model.signature
        self._is_batched = request.signature.is_batched
        self._owner: Any = None
        self._loop: EventLoopThread | None = None
        if model.signature.is_stream:
            self.pipeline_depth = streams or (ASYNC_STREAMS if model.signature.is_async else 1)
        self._function: Callable[..., Any] = model.function
        if model.model_class is not None:
            try:
                takes_context = bool(inspect.signature(model.model_class).parameters)
                self.calls_models = takes_context
                self._owner = model.model_class(self._context(request)) if takes_context else model.model_class()
            except BaseException as error:
                raise load_failure(error, model_import.root, f"{getattr(model.model_class, '__name__', 'the class')}.__init__") from error
            self._function = getattr(self._owner, ENTRY)
        if model.signature.is_async:
            self._loop = EventLoopThread(f"model-{request.instance_name}")

    @staticmethod
    def _context(request: LoadRequest) -> Context:
        return Context(
            model_name=request.model_name,
            version=request.version,
            folder=request.files.root,
            parameters=request.parameters,
            instance_name=request.instance_name,
            cpu_threads=request.cpu_threads,
            device_id=request.device_id,
            calls=request.calls,
        )

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        if self._signature.is_stream:
            return super().execute(inputs, output_names)
        arguments, sizes = self._arguments(inputs)
        returned = self._function(**arguments)
        if self._loop is not None:
            returned = self._loop.run(returned)
        return self._outputs(returned, sizes, inputs)

    def respond(self, inputs: Arrays, output_names: Sequence[str], parameters: Parameters) -> Iterator[Arrays]:
        arguments, sizes = self._arguments(inputs)
        yielded = self._function(**arguments)
        items: Any = self._loop.iterate(yielded) if self._loop is not None else yielded
        try:
            for item in items:
                yield self._outputs(item, sizes, inputs)
        finally:
            items.close()

    def close(self) -> None:
        try:
            close = getattr(self._owner, "close", None)
            if callable(close):
                result = close()
                if inspect.iscoroutine(result) and self._loop is not None:
                    self._loop.run(result)
        finally:
            if self._loop is not None:
                self._loop.close()
            self._import.forget(self._module)

    def _arguments(self, inputs: Arrays) -> tuple[dict[str, Any], dict[str, int]]:
        """The arguments of the function, and the sizes of named dims.

        Raises:
            InvalidRequest: dims of one name differ in size, or text is not UTF-8.
        """
        sizes: dict[str, int] = {}
        arguments: dict[str, Any] = {}
        for tensor in self._signature.inputs:
            if tensor.name in inputs:
                array = inputs[tensor.name]
                for dim, size in zip(tensor.dims, array.shape, strict=True):
                    if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                        raise InvalidRequest(f"input '{tensor.name}' has {size} as its size '{dim}', another input has {sizes[dim]}")
                arguments[tensor.name] = _argument(tensor, array)
        return arguments, sizes

    def _outputs(self, returned: Any, sizes: Mapping[str, int], inputs: Arrays) -> Arrays:
        given = dict(self._named(returned))
        return {tensor.name: _output(tensor, given[tensor.name], sizes, inputs) for tensor in self._signature.outputs}

    def _named(self, returned: Any) -> Iterator[tuple[str, Any]]:
        outputs = self._signature.outputs
        how = self._signature.returns
        if how == "single":
            yield outputs[0].name, returned
        elif how == "tuple":
            if not isinstance(returned, (tuple, list)) or len(returned) != len(outputs):
                raise BackendFailed(f"{ENTRY} returned {_shown(returned)}, its annotation says a tuple of {len(outputs)}")
            yield from zip((tensor.name for tensor in outputs), returned, strict=True)
        elif how == "mapping":
            missing = [tensor.name for tensor in outputs if not isinstance(returned, Mapping) or tensor.name not in returned]
            if missing:
                raise BackendFailed(f"{ENTRY} returned {_shown(returned)} without '{missing[0]}', which its annotation has")
            yield from cast("Mapping[str, Any]", returned).items()
        else:
            for tensor in outputs:
                if not hasattr(returned, tensor.name):
                    raise BackendFailed(f"{ENTRY} returned {_shown(returned)} without '{tensor.name}', which its annotation has")
                yield tensor.name, getattr(returned, tensor.name)


def _shown(value: object) -> str:
    return "None" if value is None else f"an object of class {type(value).__name__}"


def _argument(tensor: TypedTensor, array: Array) -> Any:
    if tensor.datatype.is_bytes and tensor.element is str:
        try:
            texts = [element.decode() for element in array.reshape(-1).tolist()]
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"input '{tensor.name}' holds text that is not UTF-8, at byte {error.start} of an element") from error
        if tensor.is_scalar:
            return texts[0] if tensor.dims == (1,) else texts
        made = np.empty(len(texts), dtype=np.object_)
        made[:] = texts
        return made.reshape(array.shape)
    if tensor.is_scalar:
        values = array.reshape(-1).tolist()
        return values[0] if tensor.dims == (1,) else values
    # What arrived over the network is read-only, but models compute in place.
    return array if array.flags.writeable else array.copy()


def _output(tensor: TypedTensor, value: Any, sizes: Mapping[str, int], inputs: Arrays) -> Array:
    """`value` as an array of the tensor's type, in memory that is not an input's.

    Raises:
        BackendFailed: it has another shape, or another element type to which it cannot be converted without a change of a value.
    """
    where = f"{ENTRY} returned '{tensor.name}'"
    if tensor.datatype.is_bytes:
        texts = [value] if isinstance(value, (str, bytes)) else value
        array = as_bytes_array(np.asarray(texts, dtype=np.object_))
    else:
        array = np.asarray(value)
        wanted = tensor.datatype.numpy
        if array.dtype != wanted:
            are_integers = array.dtype.kind in "iu" and wanted.kind in "iu"
            if not are_integers and (array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, wanted, "same_kind")):
                shown = "text" if array.dtype.kind == "U" else array.dtype
                raise BackendFailed(f"{where} as {shown}, its annotation says {tensor.datatype.value}")
            converted = array.astype(wanted)
            if are_integers and not np.array_equal(converted, array):
                raise BackendFailed(f"{where} with a value that {tensor.datatype.value} does not have")
            array = converted
        elif any(np.may_share_memory(array, each) for each in inputs.values()):
            array = array.copy()
    if tensor.is_scalar and array.ndim == 0:
        array = array.reshape(1)
    if len(array.shape) != len(tensor.dims):
        raise BackendFailed(f"{where} of shape {list(array.shape)}, its annotation says {_dims(tensor)}")
    for dim, size in zip(tensor.dims, array.shape, strict=True):
        if size != (sizes.get(dim, size) if isinstance(dim, str) else dim):
            known = ", ".join(f"{name} = {value}" for name, value in sizes.items() if name in tensor.dims)
            raise BackendFailed(
                f"{where} of shape {list(array.shape)}, its annotation says {_dims(tensor)}{f' with {known}' if known else ''}"
            )
    return array


def _dims(tensor: TypedTensor) -> str:
    return f"[{', '.join(str(dim) for dim in tensor.dims)}]"


def _check_served(served: ModelSignature, typed: TypedSignature, filename: str) -> None:
    """Rejects a configuration that contradicts the annotations.

    Raises:
        ModelLoadError: a tensor is missing, unknown, or has another type or other dims.
    """
    is_batched = typed.batching is not None
    if served.is_batched != is_batched:
        text = "is @batched, but max_batch_size is 0" if is_batched else f"is not @batched, but max_batch_size is {served.max_batch_size}"
        raise ModelLoadError(f"{filename}: {ENTRY} {text}")
    if typed.is_stream != served.is_decoupled:
        text = "yields responses, but the configuration is not decoupled" if typed.is_stream else "yields nothing, but it is decoupled"
        raise ModelLoadError(f"{filename}: {ENTRY} {text}")
    for side, specs, tensors in (("input", served.inputs, typed.inputs), ("output", served.outputs, typed.outputs)):
        by_name = {tensor.name: tensor for tensor in tensors}
        for spec in specs:
            tensor = by_name.pop(spec.name, None)
            if tensor is None:
                raise ModelLoadError(f"{filename}: {ENTRY} has no {side} '{spec.name}', which the configuration has")
            sizes = tensor.sizes(is_batched=is_batched)
            if tensor.datatype is not spec.datatype or not _takes(sizes, spec.model_dims):
                raise ModelLoadError(
                    f"{filename}: {side} '{spec.name}' is {tensor.datatype.value} {sizes} in the annotations, "
                    f"{spec.datatype.value} {list(spec.model_dims)} in the configuration"
                )
        needed = [name for name, tensor in by_name.items() if side == "input" and not tensor.has_default]
        if needed:
            raise ModelLoadError(f"{filename}: {ENTRY} needs input '{needed[0]}', which the configuration does not have")


def _takes(sizes: Sequence[int], dims: Sequence[int]) -> bool:
    return len(sizes) == len(dims) and all(size in (VARIABLE, dim) for size, dim in zip(sizes, dims, strict=True))
