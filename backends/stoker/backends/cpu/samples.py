"""Samples, or random data, as batches of a model with open dimensions: any number of rows, the last batch with what is left.

The batch of a converted model: its size, and the model made to take fewer rows too. Where the source leaves dimension 0 of all inputs open,
that is the batch; where all have one size there, the dimension is opened. That rows do not depend on each other is tried, not assumed: with
two batches by themselves in the source, and both together in what was made of it.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.backends.api.cpu import usable_cores
from stoker.backends.cpu.runtime import Run, run_of
from stoker.compiler import target
from stoker.compiler.convert.free_batch import with_free_batch
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.precision.drift import agree, random_outputs, rows_of
from stoker.compiler.precision.samples import batches_of, check_names, exact_cast, inputs_of, load_samples, random_batches, split
from stoker.compiler.target import SourceModel

Batches = list[dict[str, NDArray[Any]]]

#: Batches that outputs are compared over; more samples than that calibrate, but need not all be run twice more.
MAX_BATCHES: Final = 64
#: Fewer rows than this are not split into those that calibrate and those that the report is over.
_LEAST_TO_SPLIT: Final = 16
#: Sizes of open dimensions, but for the batch, that random data is tried with; the first that the source runs with is taken.
_TRIAL_SIZES: Final = (16, 32, 64, 128, 224, 8, 4, 1)
#: Sizes that a further batch of random data is tried with.
_OTHER_SIZES: Final = (21, 48, 160)


@dataclass(frozen=True, slots=True)
class Samples:
    """Data for one model.

    Attributes:
        calibration: To take ranges from; empty where nothing is calibrated.
        report: To compare outputs over.
        rows: Samples in `report`.
        is_held_out: Whether none of `report` is in `calibration`; None where nothing is calibrated.
        is_random: Whether there were no samples.
    """

    calibration: Batches
    report: Batches
    rows: int
    is_held_out: bool | None = None
    is_random: bool = False


def samples_of(source: SourceModel, batch: int, run: Run | None = None) -> Samples:
    """The samples of `source`, or random data where it has none.

    Args:
        source: Its model says types and shapes; dimension 0 is the batch's where `batch` is not 0.
        batch: Rows of a full batch; 0: the model is not batched, each sample has its shapes.
        run: The source model, by which sizes of open dimensions are found for random data.

    Raises:
        OptionError: the file cannot be read or fits the inputs in no way, or a value is not representable, or has no place in a range.
        ShapeError: an array has another shape than its input.
    """
    inputs = fed_inputs(source.model)
    if source.samples is None:
        # A model that is not batched may still run with nothing but the rows that were asked for.
        fixed = inputs if batch or source.batch_size is None else [_sized(each, source.batch_size, None) for each in inputs]
        made = random_data(fixed, batch, run, count=4)
        made += _of_other_sizes(inputs, batch, run, made[0])
        return Samples([], made, rows_of(made) if batch else len(made), is_random=True)
    data = load_samples(source.samples)
    check_names(inputs, data)
    if source.precision != "int8":
        kept = _thinned(_feeds(inputs, data, batch, source.samples, None), MAX_BATCHES)
        return Samples([], kept, rows_of(kept) if batch else len(kept))
    for each in inputs:
        array = data[str(each.name)]
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise OptionError(f"calibration data for input '{each.name}' holds NaN or infinity; ranges are taken from finite values")
    feeds = _feeds(inputs, data, batch, source.samples, 1 if batch else None)
    parts = split(feeds, least=_LEAST_TO_SPLIT if batch else 4)
    calibration, report = _joined(parts.calibration, batch), _thinned(_joined(parts.report, batch), MAX_BATCHES)
    return Samples(calibration, report, rows_of(report) if batch else len(report), is_held_out=parts.is_held_out)


def calibration_batches(source: SourceModel, batch: int) -> Batches:
    """The samples that ranges are taken from.

    Raises:
        OptionError: there are none; or as `samples_of`.
    """
    if source.samples is None:
        raise OptionError("--precision int8 needs --data_preprocess: samples to calibrate with, as a pickle or .npz of {input name: array}")
    return samples_of(source, batch).calibration


def fed_inputs(model: onnx.ModelProto) -> list[ir.Value]:
    """The inputs of `model` that must be fed."""
    return inputs_of(ir.from_proto(model).graph)


def random_data(inputs: Sequence[ir.Value], batch: int, run: Run | None, *, count: int, seed: int = 0) -> Batches:
    """Random batches of `batch` rows (0: of the inputs' own sizes), at a size of the open dimensions that `run` takes.

    Raises:
        CompileError: it takes none of those tried; or an input has no rank.
    """
    error: CompileError | None = None
    for size in _TRIAL_SIZES if any(_is_open(each, batch) for each in inputs) else _TRIAL_SIZES[:1]:
        made = random_batches([_sized(each, batch, size) for each in inputs], count, seed)
        if run is None:
            return made
        try:
            run(made[0])
        except CompileError as found:
            error = error or found
        else:
            return made
    raise CompileError(
        f"{error}; open dimensions were tried with {', '.join(map(str, _TRIAL_SIZES))} elements of random data: give samples "
        "(--data_preprocess) of a size that the model takes, or fix it (--input_shape)"
    )


def _of_other_sizes(inputs: Sequence[ir.Value], batch: int, run: Run | None, known: Mapping[str, NDArray[Any]]) -> Batches:
    """A batch of another size of the open dimensions, where `run` takes one: what was compiled must not depend on the first."""
    if run is None or not any(_is_open(each, batch) for each in inputs):
        return []
    for size in _OTHER_SIZES:
        made = random_batches([_sized(each, batch, size) for each in inputs], 1, seed=size)
        if all(array.shape == known[name].shape for name, array in made[0].items()):
            continue
        try:
            run(made[0])
        except CompileError:
            continue
        return made
    return []


def _is_open(value: ir.Value, batch: int) -> bool:
    return value.shape is not None and not all(isinstance(dim, int) for dim in list(value.shape)[1 if batch else 0 :])


def _sized(value: ir.Value, rows: int, size: int | None) -> ir.Value:
    """`value` with `rows` (unless that is 0) in an open dimension 0, and `size`, or what it has where that is None, in the others."""
    if value.shape is None:
        raise ShapeError(f"input '{value.name}' has no declared shape; give it one by --input_shape")
    dims = [dim if isinstance(dim, int) or size is None else size for dim in value.shape]
    if rows and dims and not isinstance(value.shape[0], int):
        dims[0] = rows
    return ir.Value(name=value.name, type=value.type, shape=ir.Shape(dims))


def _feeds(inputs: Sequence[ir.Value], data: Mapping[str, NDArray[Any]], batch: int, file: str, rows: int | None) -> Batches:
    """Batches of `rows` rows (None: of full batches, the last of what is left); of a model without batching one feed a sample."""
    if not batch:
        if not any(_is_open(each, 0) for each in inputs):
            return batches_of(inputs, data, file=file)
        cast = {str(each.name): exact_cast(data[str(each.name)], each, file=file) for each in inputs}
        if all(_fits(cast[str(each.name)].shape, each, 0) for each in inputs):
            return [cast]
        if all(_fits(cast[str(each.name)].shape[1:], each, 0) for each in inputs) and len({len(each) for each in cast.values()}) == 1:
            return [{name: array[at] for name, array in cast.items()} for at in range(len(next(iter(cast.values()))))]
        raise _violation(inputs, cast)
    cast = {}
    for each in inputs:
        array = exact_cast(data[str(each.name)], each, file=file)
        if each.shape is not None and array.ndim == len(each.shape) + 1:
            array = array.reshape(-1, *array.shape[2:])
        if not _fits(array.shape, each, batch):
            raise _violation([each], {str(each.name): data[str(each.name)]})
        cast[str(each.name)] = array
    counts = {name: len(array) for name, array in cast.items()}
    if len(set(counts.values())) > 1:
        raise OptionError(f"calibration data has different numbers of samples: {', '.join(f'{n} of {name}' for name, n in counts.items())}")
    (total,) = set(counts.values())
    if not total:
        name, array = next(iter(cast.items()))
        raise OptionError(f"calibration data for input '{name}' has shape {list(array.shape)}: it holds no samples")
    step = rows or batch
    return [{name: array[at : at + step] for name, array in cast.items()} for at in range(0, total, step)]


def _fits(shape: tuple[int, ...], value: ir.Value, batch: int) -> bool:
    if value.shape is None or len(shape) != len(value.shape):
        return False
    pairs = list(zip(shape, value.shape, strict=True))[1 if batch else 0 :]
    return all(not isinstance(dim, int) or dim == size for size, dim in pairs)


def _violation(inputs: Iterable[ir.Value], data: Mapping[str, NDArray[Any]]) -> ShapeError:
    texts = [f"'{each.name}' has shape {list(data[str(each.name)].shape)}; expected {_shown(each)}" for each in inputs]
    return ShapeError(
        f"calibration data for input {', '.join(texts)}, any number of rows of that, or one dimension more in front ('?' is any size)"
    )


def _shown(value: ir.Value) -> str:
    return str([dim if isinstance(dim, int) else "?" for dim in value.shape or ()]).replace("'", "")


def _joined(feeds: Batches, batch: int) -> Batches:
    """Single rows as batches of `batch` rows."""
    if not batch:
        return feeds
    groups = [feeds[at : at + batch] for at in range(0, len(feeds), batch)]
    return [{name: np.concatenate([each[name] for each in group]) for name in group[0]} for group in groups]


def _thinned(batches: Batches, most: int) -> Batches:
    """Returns at most `most` of the batches, evenly spaced."""
    if len(batches) <= most:
        return batches
    return [batches[at * len(batches) // most] for at in range(most)]


_logger = logging.getLogger(__name__)

#: max_batch_size of a model with an open batch, unless the options name another; as in servers without a configuration.
DEFAULT_BATCH: Final = 32
#: Rows of the two batches that are tried.
_TRIED_ROWS: Final = (2, 3)


def batch_of(source: SourceModel) -> tuple[int, onnx.ModelProto]:
    """max_batch_size, and the model that takes batches up to it.

    Args:
        source: Its `model` converted; dimensions may be open.

    Returns:
        The rows of a batch as they were asked for, or the size that dimension 0 of all inputs and outputs has, and the model with that
        dimension open. 0 and `source.model` itself where there is no batch, or the model computes something else for more rows at once,
        which is warned of.

    Raises:
        CompileError: ONNX Runtime rejects the source.
    """
    model = source.model
    inputs = target.fed_inputs(model)
    shapes = [list(value.type.tensor_type.shape.dim) for value in (*inputs, *model.graph.output)]
    if not inputs or not all(shapes):  # without inputs, no request says how many rows it wants
        return 0, model
    sizes = {shape[0].dim_value for shape in shapes}
    try:
        if sizes == {0}:
            _check_rows(source)
            return source.batch_size or DEFAULT_BATCH, model
        if len(sizes) == 1:
            size = sizes.pop()
            # One more than it has: any other size will do, to have dimension 0 opened and tried.
            return size, with_free_batch(model, (size + 1,))
        if 0 in sizes and len(sizes) == 2 and all(not shape[0].dim_value for shape in shapes[: len(inputs)]):
            raise ShapeError("its inputs leave dimension 0 open, and an output has a fixed one")
    except ShapeError as error:
        _logger.warning("the model is served without batching, with the shapes it has: %s", error)
    return 0, model


def _check_rows(source: SourceModel) -> None:
    """Raises:
    ShapeError: rows depend on each other, or the model does not run with one of the numbers of rows tried.
    CompileError: ONNX Runtime rejects the source.
    """
    names = [value.name for value in source.model.graph.output]
    threads = usable_cores()
    alone = run_of(source.source or source.model, names, threads=threads)
    together = run_of(source.model, names, threads=threads, what="the converted model")
    inputs = fed_inputs(source.model)
    feeds = []
    for rows in _TRIED_ROWS:
        try:
            feeds += random_data(inputs, rows, alone, count=1, seed=rows)
        except CompileError as error:
            raise ShapeError(f"it does not run with {rows} rows ({error})") from error
    wanted = [alone(each) for each in feeds]
    try:
        found = together({name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]})
    except CompileError as error:
        raise ShapeError(f"it does not run with {sum(_TRIED_ROWS)} rows ({error})") from error
    random = random_outputs(source.model)
    for name in names:
        parts = [each[name] for each in wanted]
        if any(part.ndim == 0 or len(part) != rows for part, rows in zip(parts, _TRIED_ROWS, strict=True)):
            raise ShapeError(f"output '{name}' has not a row for each row of the inputs")
        if name not in random and not agree(found[name], np.concatenate(parts)):
            raise ShapeError(f"output '{name}' is another for the same inputs where more rows are computed at once")
