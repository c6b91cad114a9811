"""Reads the signature of a typed model from its annotations."""

import ast
import collections.abc
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import VARIABLE
from stoker.backends.api.tensor import DataType
from stoker.backends.python.hints import hint_of
from stoker.models.annotations import BATCH, Array, datatype_of
from stoker.models.batching import ATTRIBUTE, Batching

ENTRY: Final = "predict"
#: The name of an output that the model does not name.
OUTPUT: Final = "output"
_STREAMS: Final = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)


@dataclass(frozen=True)
class TypedTensor:
    """An input or output of a typed model.

    Attributes:
        name: Its name.
        datatype: Its element type.
        dims: Names and numbers, with "n" where it is batched.
        is_scalar: Whether the model takes or returns a Python object (bool, int, float, str, bytes) instead of an array.
        element: What the elements of a BYTES tensor are for the model: `str` or `bytes`.
        has_default: Whether a request may leave it out.
    """

    name: str
    datatype: DataType
    dims: tuple[int | str, ...]
    is_scalar: bool = False
    element: object = bytes
    has_default: bool = False

    def sizes(self, *, is_batched: bool) -> list[int]:
        """The dims for config.pbtxt, without the batch dimension; -1 where the size varies."""
        return [VARIABLE if isinstance(dim, str) else dim for dim in (self.dims[1:] if is_batched else self.dims)]

    def config(self, *, is_batched: bool) -> dict[str, Any]:
        """The tensor in config.pbtxt, in Triton's JSON form. A row that is a single number is `[1]` for clients, as in Triton."""
        sizes = self.sizes(is_batched=is_batched)
        shape: dict[str, Any] = {"dims": sizes} if sizes else {"dims": [1], "reshape": {"shape": []}}
        return {"name": self.name, "data_type": self.datatype.config_name, **shape}


@dataclass(frozen=True)
class TypedSignature:
    """The signature of a typed model.

    Attributes:
        inputs: In the order of the parameters.
        outputs: In the order of the annotation.
        returns: How outputs are returned: `single`, `tuple`, `mapping` (also TypedDict), `fields` (NamedTuple, dataclass).
        batching: None: requests are not joined.
        is_stream: Whether the model yields responses.
        is_async: Whether the function is `async`.
    """

    inputs: tuple[TypedTensor, ...]
    outputs: tuple[TypedTensor, ...]
    returns: str
    batching: Batching | None = None
    is_stream: bool = False
    is_async: bool = False

    def config(self) -> dict[str, Any]:
        """The fields of config.pbtxt that follow from the annotations, in Triton's JSON form."""
        is_batched = self.batching is not None
        made: dict[str, Any] = {
            "max_batch_size": self.batching.max if self.batching is not None else 0,
            "input": [tensor.config(is_batched=is_batched) | ({"optional": True} if tensor.has_default else {}) for tensor in self.inputs],
            "output": [tensor.config(is_batched=is_batched) for tensor in self.outputs],
        }
        if self.batching is not None and self.batching.max > 1:
            delay = {"max_queue_delay_microseconds": round(self.batching.delay_ms * 1000)} if self.batching.delay_ms else {}
            made["dynamic_batching"] = delay
        if self.is_stream:
            made["model_transaction_policy"] = {"decoupled": True}
        return made


@dataclass
class _Reader:
    """Reads one function; the errors name the lines of its source."""

    function: Callable[..., Any]
    filename: str
    lines: Mapping[str, int] = field(default_factory=dict)
    #: What is wrong with the annotations, to be reported together.
    errors: list[ModelLoadError] = field(default_factory=list)
    #: The names of the annotations that cannot be evaluated.
    unread: set[str] = field(default_factory=set)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keeps a failure for the report of all."""
        try:
            yield
        except ModelLoadError as error:
            self.errors.append(error)

    def annotations(self) -> dict[str, Any]:
        """The annotations of the function by parameter, without those that cannot be evaluated."""
        found: dict[str, Any] = {}
        owner = inspect.unwrap(self.function)
        owner = owner if isinstance(owner, types.FunctionType) else self.function
        for name, written in inspect.get_annotations(self.function).items():
            # Evaluates one: the first failure must not hide others.
            alone = types.FunctionType(owner.__code__, owner.__globals__, closure=owner.__closure__)
            alone.__annotations__ = {name: written}
            try:
                found |= inspect.get_annotations(alone, eval_str=True)
            except Exception as error:  # noqa: BLE001 - whatever the model's own code raises
                self.unread.add(name)
                text = f"the annotation of '{name}' cannot be read: {type(error).__name__}: {error}{hint_of(error)}"
                self.errors.append(self.fail(name, text))
        return found

    def fail(self, what: str, text: str) -> ModelLoadError:
        line = self.lines.get(what) or self.function.__code__.co_firstlineno
        return ModelLoadError(f"{self.filename}:{line}: {text}")

    def tensor(self, what: str, name: str, annotation: object, *, has_default: bool = False) -> TypedTensor:
        side = "returns" if what == "return" else "takes"
        annotation, is_optional = _without_none(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Array) and annotation.datatype is not None:
            element = annotation.element if annotation.element in (str, bytes) else bytes
            return TypedTensor(name, annotation.datatype, annotation.dims, element=element, has_default=has_default)
        if annotation is Array:
            raise self.fail(what, f"'{name}' needs dims and an element type, such as Array[\"n\", 8, float32]")
        if typing.get_origin(annotation) is list and typing.get_args(annotation) in ((str,), (bytes,)):
            element = typing.get_args(annotation)[0]
            return TypedTensor(name, DataType.BYTES, (f"{name}_size",), is_scalar=True, element=element, has_default=has_default)
        datatype = datatype_of(annotation)
        if datatype is None:
            shown = "no annotation" if annotation is inspect.Parameter.empty else _shown(annotation)
            raise self.fail(
                what,
                f"{ENTRY} {side} '{name}' with {shown}: expected Array[dims, dtype], such as Array[\"n\", 4, float32], or bool, int, "
                "float, str, bytes, list[str] or list[bytes]",
            )
        if is_optional and not has_default:
            raise self.fail(what, f"'{name}' may be None, so it needs the default None")
        return TypedTensor(name, datatype, (1,), is_scalar=True, element=annotation, has_default=has_default)

    def inputs(self, annotations: Mapping[str, Any]) -> Iterator[TypedTensor]:
        parameters = list(inspect.signature(self.function).parameters.values())
        if parameters and parameters[0].name == "self":
            del parameters[0]
        for parameter in parameters:
            with self.collected():
                if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                    text = f"{ENTRY} cannot have the parameter '{parameter}': each input is a parameter with a name"
                    raise self.fail(parameter.name, text)
                annotation = annotations.get(parameter.name, inspect.Parameter.empty)
                if parameter.name not in self.unread:
                    has_default = parameter.default is not inspect.Parameter.empty
                    yield self.tensor(parameter.name, parameter.name, annotation, has_default=has_default)

    def outputs(self, annotation: Any) -> tuple[str, tuple[TypedTensor, ...]]:
        """How outputs are returned, and their tensors."""
        if isinstance(annotation, Mapping):
            return "mapping", tuple(self.tensor("return", name, each) for name, each in annotation.items())
        if typing.get_origin(annotation) is tuple:
            parts = typing.get_args(annotation)
            return "tuple", tuple(self.tensor("return", f"{OUTPUT}_{index}", each) for index, each in enumerate(parts))
        if isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or _is_named_tuple(annotation)):
            return "fields", tuple(self.tensor("return", name, each) for name, each in self._annotations(annotation).items())
        if typing.is_typeddict(annotation):
            return "mapping", tuple(self.tensor("return", name, each) for name, each in self._annotations(annotation).items())
        return "single", (self.tensor("return", OUTPUT, annotation),)

    def _annotations(self, target: Any) -> Mapping[str, Any]:
        try:
            return typing.get_type_hints(target)
        except Exception as error:
            text = f"the annotations of {target.__name__} cannot be read: {type(error).__name__}: {error}{hint_of(error)}"
            raise self.fail("return", text) from error

    def signature(self) -> TypedSignature:
        annotations = self.annotations()
        inputs = tuple(self.inputs(annotations))
        how, is_stream = "single", False
        outputs: tuple[TypedTensor, ...] = ()
        if "return" not in self.unread:
            with self.collected():
                how, outputs, is_stream = self.returned(annotations)
        if self.errors:
            raise ModelLoadError("; ".join(each.message for each in self.errors)) from self.errors[0]
        if not inputs or not outputs:
            raise self.fail("", f"{ENTRY} needs at least one {'output' if inputs else 'input'}")
        return TypedSignature(
            inputs,
            outputs,
            how,
            is_stream=is_stream,
            is_async=inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function),
        )

    def returned(self, annotations: Mapping[str, Any]) -> tuple[str, tuple[TypedTensor, ...], bool]:
        """How outputs are returned, their tensors, and whether the model yields them."""
        returned = annotations.get("return", inspect.Parameter.empty)
        if returned in (inspect.Parameter.empty, None):
            raise self.fail("return", f'{ENTRY} needs the annotation of what it returns, such as `-> Array["n", 10, float32]`')
        origin: Any = typing.get_origin(returned)
        is_stream = origin in _STREAMS
        yields = inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function)
        if is_stream != yields:
            expected = "`Iterator[...]` around what it yields" if yields else "what it returns itself: it has no `yield`"
            raise self.fail("return", f"{ENTRY} needs the annotation of {expected}")
        if is_stream:
            returned = typing.get_args(returned)[0]
        return *self.outputs(returned), is_stream

    def batched(self, signature: TypedSignature, batching: Batching) -> TypedSignature:
        """`signature` with `batching`, which needs the batch dimension first in every tensor."""
        if signature.is_stream:
            raise self.fail("", "a model that yields responses cannot be @batched: each request is a stream of its own")
        for what, tensors in (("", signature.inputs), ("return", signature.outputs)):
            for tensor in tensors:
                if tensor.dims[:1] != (BATCH,):
                    text = f"'{tensor.name}' of a @batched model must be an Array whose first dim is \"{BATCH}\", the batch dimension"
                    raise self.fail(what or tensor.name, text)
        return dataclasses.replace(signature, batching=batching)


def read_signature(function: Callable[..., Any], filename: str, *, owner: type | None = None) -> TypedSignature:
    """The signature of the function or method `function`.

    Args:
        function: `predict`.
        filename: The name of its file for messages.
        owner: The class of a method, which may be @batched instead.

    Raises:
        ModelLoadError: an annotation is missing or is not that of a tensor; the message begins with file and line.
    """
    reader = _Reader(function, filename, _lines(function))
    signature = reader.signature()
    batching = getattr(function, ATTRIBUTE, None) or (getattr(owner, ATTRIBUTE, None) if owner is not None else None)
    return signature if batching is None else reader.batched(signature, batching)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """The annotation without `| None`, and whether it had it."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [each for each in typing.get_args(annotation) if each is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return annotation, False


def _shown(annotation: object) -> str:
    """The name of a class as a model writes it; other annotations as they are."""
    if not isinstance(annotation, type) or typing.get_origin(annotation) is not None:
        return repr(annotation)
    return annotation.__qualname__ if annotation.__module__ == "builtins" else f"{annotation.__module__}.{annotation.__qualname__}"


def _is_named_tuple(annotation: type) -> bool:
    return issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def _lines(function: Callable[..., Any]) -> dict[str, int]:
    """The line of each parameter by name, and of the `return` annotation; empty where there is no source."""
    try:
        source, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, TypeError, SyntaxError):
        return {}
    node = tree.body[0]
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {}
    offset = max(first, 1) - 1
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))]
    found = {each.arg: each.lineno + offset for each in every}
    found["return"] = (node.returns or node).lineno + offset
    found[""] = node.lineno + offset
    return found
