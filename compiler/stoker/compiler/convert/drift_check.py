"""Compares what each conversion makes with its source, and rejects a conversion that changed the function of the model.

Both models run on ONNX Runtime with the same generated inputs. FP32 may differ by 1e-3 of an output's root mean square; narrower precisions
have limits of their own (`stoker.compiler.check`). A pass of the user may change the function on purpose: a difference is then a warning.
Of several batch sizes, the smallest, a middle and the largest one are compared. The cost is bounded: a large batch of an expensive model is
converted again, and compared, for as many rows as the time allows, and a log message says so.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import onnx

from stoker.compiler.check import compare_models, failure_of_check, random_feeds
from stoker.compiler.convert.free_batch import runner_of, with_rows
from stoker.compiler.convert.free_dimensions import RANDOM_SIZE, closed, requested_batch_size
from stoker.compiler.convert.options import COMPILED_PRECISIONS, ConversionOptions
from stoker.compiler.errors import CheckError, NotComparableError
from stoker.compiler.passes.registry import pass_class
from stoker.compiler.target import fed_inputs

logger = logging.getLogger(__name__)

#: Seconds that each of the two models may run.
LIMIT_S: Final = 10.0
#: Rows for a model whose batch stays variable and has no known largest size.
_ROWS: Final = (1, 2, 4)
#: Sizes to try for variable dimensions beside the batch: most models take the first, images need more.
_SIZES: Final = (RANDOM_SIZE, 224)
#: Passes that a user may name which store fewer bits, and the precision whose limits then hold.
_NARROWING: Final = {"float_to_int8": "int8", "float_to_fp8": "fp8", "float_to_half": "fp16", "float_to_mixed": "fp16"}

Convert = Callable[[ConversionOptions], onnx.ModelProto]


def is_compared(batch: int, batches: Sequence[int]) -> bool:
    """Returns whether the conversion for `batch` is compared with its source: it is the smallest, middle or largest of `batches`."""
    ordered = sorted(batches)
    return batch in (ordered[0], ordered[len(ordered) // 2], ordered[-1])


def check_drift(
    source: onnx.ModelProto, converted: onnx.ModelProto, options: ConversionOptions, convert: Convert, *, notes: int = logging.WARNING
) -> None:
    """Compares `converted` with `source`. Logs a warning for each part that cannot be compared, and for an allowed difference.

    Args:
        source: The model before conversion.
        converted: The model after conversion with `options`.
        options: `allow_drift`, or a pass of the user, makes an error a warning.
        convert: Converts `source` with other options, for fewer rows.
        notes: Level of the log messages about parts that are not compared.

    Raises:
        CheckError: an output differs more from the source's than the precision explains; the text names output, batch and figures.
    """
    precision = _limits(options)
    is_allowed = options.allow_drift or any(_is_users(name) for name in options.passes)
    for model, where in _sized(source, converted, options, convert, notes):
        try:
            errors = compare_models(source, model, limit_s=LIMIT_S)
        except NotComparableError as error:
            logger.log(notes, "the conversion was not compared with its source%s: %s", where, str(error).removeprefix("check: "))
            return
        for each in errors:
            if each.not_comparable:
                logger.log(notes, "output '%s' is not comparable with the source's: %s", each.name, each.not_comparable)
        failures = [failure for each in errors if (failure := failure_of_check(each, precision))]
        if not failures:
            logger.info("compared with the source%s", where)
            continue
        _report(f"the converted model computes something else than its source{where}: {'; '.join(failures)}", is_allowed=is_allowed)


def check_lowered(converted: onnx.ModelProto, lowered: onnx.ModelProto, precision: str, *, allow_drift: bool) -> None:
    """Compares the graph that a device computes with the converted model, where compilation chose a narrower type than the conversion.
    Logs a warning if it cannot be compared.

    Args:
        converted: The converted model, with static shapes; its own comparison with the source is `check_drift`.
        lowered: The graph with the device's roundings.
        precision: The narrowest type of `lowered`, whose limits hold.
        allow_drift: Makes an error a warning.

    Raises:
        CheckError: an output differs more than `precision` explains; the text names output and figures.
    """
    try:
        errors = compare_models(converted, lowered, limit_s=LIMIT_S)
    except NotComparableError as error:
        logger.warning("what is compiled was not compared with the converted model: %s", str(error).removeprefix("check: "))
        return
    failures = [failure for each in errors if (failure := failure_of_check(each, precision))]
    if failures:
        _report(f"the compiled model computes something else than its source: {'; '.join(failures)}", is_allowed=allow_drift)


def _report(text: str, *, is_allowed: bool) -> None:
    if not is_allowed:
        raise CheckError(f"{text}; allow_drift compiles it nevertheless")
    logger.warning("%s", text)


def _is_users(name: str) -> bool:
    return not pass_class(name).__module__.startswith("stoker.compiler.passes.")


def _limits(options: ConversionOptions) -> str:
    """Returns the precision whose limits hold. Target `cpu` makes its own precisions after the conversion, which leaves FP32."""
    if options.precision not in ("fp32", *COMPILED_PRECISIONS):
        return options.precision
    return next((precision for name, precision in _NARROWING.items() if name in options.passes), "fp32")


def _sized(
    source: onnx.ModelProto, converted: onnx.ModelProto, options: ConversionOptions, convert: Convert, notes: int
) -> Iterator[tuple[onnx.ModelProto, str]]:
    """Yields the models with static shapes to compare, and what the messages say of each."""
    if any(not dim.HasField("dim_value") for value in fed_inputs(converted) for dim in value.type.tensor_type.shape.dim):
        yield from _closed(source, converted, options, notes)
        return
    rows = _rows(converted)
    fitting = _fitting_rows(source, converted, rows)
    smaller = _with_batch(options, rows, fitting) if fitting < rows else None
    if smaller is None:
        yield converted, f" at batch {rows}" if rows else ""
        return
    logger.log(notes, "the conversion is compared with its source at batch %d of %d: more takes over %g s", fitting, rows, LIMIT_S)
    yield convert(smaller), f" at batch {fitting}"


def _closed(
    source: onnx.ModelProto, converted: onnx.ModelProto, options: ConversionOptions, notes: int
) -> Iterator[tuple[onnx.ModelProto, str]]:
    largest = requested_batch_size(options)
    wanted = _ROWS if largest is None else sorted({1, (largest + 1) // 2, largest})
    size = next((size for size in _SIZES if _seconds(source, closed(converted, rows=1, size=size)) is not None), _SIZES[0])
    for rows in wanted:
        sized = closed(converted, rows=rows, size=size)
        if rows > 1 and (fitting := _fitting_rows(source, sized, rows)) < rows:
            logger.log(notes, "the conversion is not compared with its source at batch %d: over %d takes over %g s", rows, fitting, LIMIT_S)
            return
        yield sized, f" at batch {rows}"


def _rows(model: onnx.ModelProto) -> int:
    """Returns dimension 0 of the inputs; 0 if they have several or none."""
    sizes = {dims[0].dim_value if (dims := value.type.tensor_type.shape.dim) else 0 for value in fed_inputs(model)}
    return sizes.pop() if len(sizes) == 1 else 0


def _fitting_rows(source: onnx.ModelProto, converted: onnx.ModelProto, rows: int) -> int:
    """Returns how many of `rows` run within half of `LIMIT_S`, by the time of one; all of them if that is not known."""
    one = with_rows(source, converted, 1) if rows > 1 else None
    seconds = None if one is None else _seconds(one, one)
    return rows if not seconds else max(1, min(rows, int(LIMIT_S / (2 * seconds))))


def _seconds(source: onnx.ModelProto, shapes: onnx.ModelProto) -> float | None:
    """Returns the time of one run of `source` with inputs of these shapes; None if it does not run."""
    try:
        run, feeds = runner_of(source), random_feeds(shapes)
        began = time.monotonic()
        run(feeds)
    except Exception:  # noqa: BLE001 - onnxruntime's errors share no class of their own
        return None
    return time.monotonic() - began


def _with_batch(options: ConversionOptions, rows: int, wanted: int) -> ConversionOptions | None:
    """Returns `options` with another batch size; None if they do not set the batch."""
    if options.batch_size == rows and options.batch_axis == 0:
        return dataclasses.replace(options, batch_size=wanted)
    if options.input_shape and all(shape[:1] == (rows,) for shape in options.input_shape.values()):
        return dataclasses.replace(options, input_shape={name: (wanted, *shape[1:]) for name, shape in options.input_shape.items()})
    return None
