"""`Conversions`: the source model converted once for each target and precision, shared by all devices and batch sizes."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx

from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.errors import CompileError
from stoker.compiler.target import SourceModel, Target, fed_inputs


class Conversions:
    """Converts on first use, and keeps what it converted."""

    def __init__(self, source: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], base_batch: int | None) -> None:
        """Keeps the arguments.

        Args:
            source: The source model.
            shapes: Sizes of variable dimensions, by input.
            base_batch: Rows to convert for; other batch sizes are planned from this conversion. None: the sizes in the model.
        """
        self.source = source
        self.base_batch = base_batch
        self._shapes = shapes
        self._made: dict[tuple[tuple[str, ...], str, int | None], onnx.ModelProto | CompileError] = {}

    def of(self, target: Target, precision: str, batch: int | None = None) -> SourceModel:
        """Returns the model converted for `target` in `precision`, for `batch` rows or the base batch.

        Raises:
            CompileError: the model cannot be converted.
        """
        rows = self.base_batch if batch is None else batch
        converted = target.conversion_precision(precision)
        key = (target.skip_passes, converted, rows)
        if key not in self._made:
            self._made[key] = self._convert(target, converted, rows)
        model = self._made[key]
        if isinstance(model, CompileError):
            raise model
        return SourceModel(
            model=model,
            name="model",
            inputs=[value.name for value in fed_inputs(self.source)],
            source=self.source,
            precision=precision,
            batch_size=rows,
        )

    def _convert(self, target: Target, precision: str, rows: int | None) -> onnx.ModelProto | CompileError:
        options = ConversionOptions(
            precision=precision,
            input_shape=self._shapes,
            batch_size=rows,
            batch_axis=None if rows is None else 0,
            skip_passes=target.skip_passes,
        )
        try:
            return Converter.of(options).convert_internal(self.source, is_compared=False)
        except CompileError as error:
            return error


class _Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.texts[" ".join(record.getMessage().split())] = None


@contextmanager
def collected_warnings() -> Iterator[Sequence[str] | list[str]]:
    """Collects the warnings that Stoker logs inside the block, each once, instead of printing them. The list is complete after it."""
    logger, handler, found = logging.getLogger("stoker"), _Collected(), list[str]()
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        found.extend(handler.texts)
