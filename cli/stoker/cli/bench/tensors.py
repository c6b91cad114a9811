"""The tensors of a load: made from the model's metadata, or read from files as by `stoker infer`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.cli.bench.filling import Filling
from stoker.cli.output import CommandFailed, ExitCode

if TYPE_CHECKING:
    from stoker_client.tensors import TensorLike

#: Bound on the bytes of one request's tensors: the largest KServe message.
_MOST_BYTES = 2**31 - 1
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", dtype=np.uint8)
#: The seed of random values, so that runs can be compared.
_SEED = 0


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """The settings for making inputs.

    Attributes:
        shapes: By input name, the sizes of all dimensions, or of those after the batch dimension.
        batch: Rows of a request; None: 1, or the rows of the files.
        string_length: Characters of each element of a BYTES tensor.
    """

    shapes: Mapping[str, tuple[int, ...]]
    filling: Filling
    batch: int | None
    string_length: int


def parse_shapes(assignments: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parses the values of `--shape name:3,224,224`.

    Raises:
        CommandFailed: a value is malformed, or names an input twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for assignment in assignments:
        name, colon, sizes = assignment.rpartition(":")
        parts = sizes.split(",")
        if not colon or not name or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
            raise CommandFailed(f"--shape {assignment}: expected NAME:SIZE,SIZE,... such as image:3,224,224", ExitCode.USAGE)
        if name in shapes:
            raise CommandFailed(f"--shape names '{name}' twice", ExitCode.USAGE)
        shapes[name] = tuple(int(part) for part in parts)
    return shapes


def make_inputs(metadata: Mapping[str, Any], plan: TensorPlan, given: Mapping[str, "TensorLike"]) -> "dict[str, TensorLike]":
    """A tensor for every input of the model.

    Args:
        metadata: The model's.
        plan: Settings for inputs that are not given.
        given: Tensors from files, by name; used unchanged.

    Raises:
        CommandFailed: a variable dimension has no given size, or a shape does not fit the model.
    """
    specs = {str(spec["name"]): spec for spec in metadata.get("inputs", [])}
    unknown = [name for name in plan.shapes if name not in specs]
    if unknown:
        raise CommandFailed(f"--shape {unknown[0]}: the model has no such input; it has {', '.join(specs) or 'none'}", ExitCode.USAGE)
    random = np.random.default_rng(_SEED)
    inputs = dict(given)
    for name, spec in specs.items():
        if name not in inputs:
            shape = _shape(name, [int(size) for size in spec["shape"]], plan)
            inputs[name] = _made(name, str(spec["datatype"]), shape, plan, random)
    if not inputs:
        raise CommandFailed(f"model '{metadata.get('name')}' states no inputs; there is nothing to send")
    return inputs


def rows_of(inputs: Mapping[str, "TensorLike"], metadata: Mapping[str, Any]) -> int:
    """Rows of one request: the size of the first dimension where the model leaves it open, else 1."""
    for spec in metadata.get("inputs", []):
        if spec["shape"] and int(spec["shape"][0]) == -1 and spec["name"] in inputs:
            value = inputs[spec["name"]]
            return len(np.asarray(getattr(value, "array", value)))
    return 1


def _shape(name: str, dims: list[int], plan: TensorPlan) -> tuple[int, ...]:
    stated = plan.shapes.get(name)
    is_batched = bool(dims) and dims[0] == -1
    if stated is not None and len(stated) == len(dims):
        shape = list(stated)
    elif stated is not None and is_batched and len(stated) == len(dims) - 1:
        shape = [plan.batch or 1, *stated]
    elif stated is not None:
        raise CommandFailed(f"--shape {name}: {len(stated)} sizes for an input of shape {dims}", ExitCode.USAGE)
    else:
        shape = [plan.batch or 1, *dims[1:]] if is_batched else dims
        if any(size < 0 for size in shape):
            raise CommandFailed(f"input '{name}' has open dimensions {dims}: give their sizes by --shape {name}:SIZE,...", ExitCode.USAGE)
    wrong = [at for at, (size, wanted) in enumerate(zip(shape, dims, strict=True)) if wanted >= 0 and size != wanted]
    if wrong:
        raise CommandFailed(f"--shape {name}: {shape} does not fit the model's {dims}", ExitCode.USAGE)
    if plan.batch is not None and not is_batched and plan.batch != 1:
        raise CommandFailed(f"--batch-size {plan.batch}: input '{name}' of shape {dims} has no open batch dimension", ExitCode.USAGE)
    return tuple(shape)


def _made(name: str, datatype: str, shape: tuple[int, ...], plan: TensorPlan, random: np.random.Generator) -> "TensorLike":
    from stoker_client import TypedArray, float32_to_bf16
    from stoker_client.datatypes import NUMPY_TYPES

    count = math.prod(shape)
    dtype = None if datatype == "BYTES" else NUMPY_TYPES.get(datatype)
    if dtype is None and datatype != "BYTES":
        raise CommandFailed(f"input '{name}' takes {datatype}, which this command cannot make; give it by --input")
    if count * (plan.string_length + 4 if dtype is None else dtype.itemsize) > _MOST_BYTES:
        raise CommandFailed(f"input '{name}' {datatype}{list(shape)} is over {_MOST_BYTES} bytes: no message holds it", ExitCode.USAGE)
    is_random = plan.filling is Filling.RANDOM
    if dtype is None:
        codes = (
            _LETTERS[random.integers(0, _LETTERS.size, (count, plan.string_length))]
            if is_random
            else np.full((count, plan.string_length), ord("0"), np.uint8)
        )
        texts = np.empty(shape, dtype=np.object_)
        texts.ravel()[:] = [row.tobytes() for row in codes]
        return texts
    if not is_random:
        return TypedArray(np.zeros(shape, dtype), datatype)
    if datatype == "BF16":
        return TypedArray(float32_to_bf16(random.random(shape, np.float32)), datatype)
    if dtype.kind == "f":
        return TypedArray(random.random(shape, np.float32).astype(dtype), datatype)
    if dtype.kind == "b":
        return TypedArray(random.integers(0, 2, shape).astype(dtype), datatype)
    # Small and not negative, as indices and counts commonly are.
    return TypedArray(random.integers(0, 100, shape).astype(dtype), datatype)
