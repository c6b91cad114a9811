"""Loads a version as the server does, and compares its outputs with those of the source."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.batch import BatchItem, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.cpu import usable_cores
from stoker.backends.api.errors import ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts, TensorSpec
from stoker.backends.api.registry import BackendRegistry
from stoker.cli.add.child_run import Sample
from stoker.cli.output import CommandFailed
from stoker.server.config.complete import choose_backend, complete
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.core.model_config import ModelConfig

#: Bytes of the tensors of one batch up to which a default max_batch_size may go.
_BATCH_BYTES: Final = 4 << 20
_LEAST_ROWS, _MOST_ROWS = 8, 256
#: The same, if an input has an open dimension: rows of other lengths wait for a batch of their own.
_MOST_OPEN_ROWS = 32
#: Elements for which an open dimension counts.
_OPEN_SIZE: Final = 128
#: Part of the rows whose label may differ where all scores agree: ties.
_MOST_TIES: Final = 0.01


@dataclass(frozen=True, slots=True)
class Difference:
    """The comparison of one output over all samples.

    Attributes:
        output: The output's name.
        largest: The largest difference of a number; None: the output holds labels.
        scale: The largest magnitude of the source's numbers.
        rows: Rows compared.
        different_labels: Rows with another label.
    """

    output: str
    largest: float | None
    scale: float
    rows: int
    different_labels: int = 0

    def is_within(self, tolerance: float) -> bool:
        """Whether numbers differ by at most `tolerance`, relative to the output's scale where that is above 1."""
        return self.largest is None or self.largest <= tolerance * max(1.0, self.scale)


class ServedVersion:
    """One version, loaded in this process as the server would load it."""

    def __init__(self, name: str, files: Path, config_text: str) -> None:
        """Completes the configuration; loads nothing.

        Args:
            name: The model's name.
            files: The version's folder.
            config_text: The text of config.pbtxt.

        Raises:
            CommandFailed: no server would serve it.
        """
        sizes = {path.relative_to(files).as_posix(): path.stat().st_size for path in files.rglob("*") if path.is_file()}
        self._files = ModelFiles(files, sizes)
        registry = BackendRegistry()
        try:
            parsed = parse_pbtxt(config_text, source="config.pbtxt", model_name=name)
            self._backend, self._filename = choose_backend(parsed, sizes, registry)
            self.facts: ModelFacts = self._backend.inspect(self._files, self._filename)
            self.config: ModelConfig = complete(parsed, self.facts, self._backend, self._filename).config
        except ServingError as error:
            raise CommandFailed(error.message) from error

    def load(self) -> "LoadedVersion":
        """Loads it.

        Raises:
            CommandFailed: it does not load.
        """
        request = LoadRequest(
            model_name=self.config.name,
            version=1,
            files=self._files,
            model_filename=self._filename,
            signature=self.config.signature,
            parameters=self.config.parameters,
            graph_level=self.config.graph_level,
            instance_name=f"{self.config.name}_0",
            cpu_threads=usable_cores(),
        )
        try:
            return LoadedVersion(self.config, self._backend.load(request))
        except ServingError as error:
            raise CommandFailed(f"the model does not load: {error.message}") from error

    def sensible_batch_size(self) -> int:
        """A max_batch_size whose tensors stay small: a power of two; 0: the model is not batched."""
        if not self.config.signature.is_batched:
            return 0
        specs = (*self.config.signature.inputs, *self.config.signature.outputs)
        row_bytes = max(1, sum(_row_bytes(spec) for spec in specs))
        is_open = any(-1 in spec.dims for spec in self.config.signature.inputs)
        most = max(_LEAST_ROWS, min(_MOST_OPEN_ROWS if is_open else _MOST_ROWS, _BATCH_BYTES // row_bytes))
        return 1 << (most.bit_length() - 1)


def _row_bytes(spec: TensorSpec) -> int:
    size = 16 if spec.datatype.is_bytes else spec.datatype.item_bytes
    for dim in spec.dims:
        size *= _OPEN_SIZE if dim < 0 else dim
    return size


class LoadedVersion:
    """A loaded version. Close it after use."""

    def __init__(self, config: ModelConfig, instance: Instance) -> None:
        self._config = config
        self._instance = instance
        self._processor = processor_for(instance, config.signature, SystemClock())

    def close(self) -> None:
        """Unloads it."""
        self._instance.close()

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs for `inputs`, `[rows, *dims]` if the model is batched, cast and shaped as its inputs are.

        Raises:
            CommandFailed: the model rejects them.
        """
        signature = self._config.signature
        arrays = {}
        for spec in signature.inputs:
            if spec.name not in inputs:
                if spec.optional:
                    continue
                raise CommandFailed(f"the sample has no array for input '{spec.name}'")
            arrays[spec.name] = _shaped(np.asarray(inputs[spec.name]), spec, is_batched=signature.is_batched)
        rows = len(next(iter(arrays.values()))) if signature.is_batched else 1
        item = BatchItem(arrays, rows, tuple(spec.name for spec in signature.outputs))
        outcome = self._processor.process([item]).outcomes[0]
        if isinstance(outcome, ServingError):
            raise CommandFailed(f"the model fails for {rows} row{'' if rows == 1 else 's'}: {outcome.message}")
        return outcome

    def compare(self, samples: Iterable[Sample]) -> list[Difference]:
        """Runs the samples and compares the outputs with the source's.

        Raises:
            CommandFailed: the model rejects a sample, or an output has another shape than the source's.
        """
        found: dict[str, Difference] = {}
        names = [spec.name for spec in self._config.signature.outputs]
        for sample in samples:
            outputs = self.run(sample.inputs)
            for position, expected in sample.outputs.items():
                if position < len(names):
                    name = names[position]
                    found[name] = _joined(found.get(name), _difference(name, np.asarray(outputs[name]), expected))
        return list(found.values())


def _shaped(array: Any, spec: TensorSpec, *, is_batched: bool) -> Any:
    cast = array.astype(np.object_) if spec.datatype.is_bytes else array.astype(spec.datatype.numpy)
    if spec.datatype.is_bytes:
        cast = np.array([str(text).encode() for text in cast.ravel()], dtype=np.object_).reshape(cast.shape)
    if is_batched and -1 not in spec.dims:
        cast = cast.reshape(len(cast), *spec.dims)
    return np.ascontiguousarray(cast)


def _difference(name: str, served: Any, expected: Any) -> Difference:
    rows = len(expected) if expected.ndim else 1
    if served.size != expected.size:
        raise CommandFailed(f"output '{name}' has shape {list(served.shape)}, the source's has {list(expected.shape)}")
    flat, wanted = served.ravel(), expected.ravel()
    if wanted.dtype.kind in "US" or flat.dtype == object:
        texts = np.array([each.decode() if isinstance(each, bytes) else str(each) for each in flat])
        return Difference(name, None, 0.0, rows, int(np.sum(texts != wanted.astype(str))))
    if wanted.dtype.kind in "iub" and flat.dtype.kind in "iub":
        return Difference(name, None, 0.0, rows, int(np.sum(flat != wanted)))
    wide, wanted = flat.astype(np.float64), wanted.astype(np.float64)
    both_nan = np.isnan(wide) & np.isnan(wanted)
    gap = np.where(both_nan | (wide == wanted), 0.0, np.abs(wide - wanted))
    finite = np.abs(wanted[np.isfinite(wanted)])
    largest = float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0))
    return Difference(name, largest, float(np.max(finite, initial=0.0)), rows)


def _joined(one: Difference | None, other: Difference) -> Difference:
    if one is None:
        return other
    largest = None if one.largest is None or other.largest is None else max(one.largest, other.largest)
    return Difference(
        one.output, largest, max(one.scale, other.scale), one.rows + other.rows, one.different_labels + other.different_labels
    )


def rejection(differences: Sequence[Difference], tolerance: float) -> str | None:
    """Why the differences are too large; None: they are not."""
    for each in differences:
        if not each.is_within(tolerance):
            return (
                f"output '{each.output}' differs from the source's by {each.largest:.3g} (numbers up to {each.scale:.3g}), more than "
                f"the tolerance {tolerance:g}; --tolerance sets another one"
            )
    numbers = [each for each in differences if each.largest is not None]
    for each in differences:
        allowed = _MOST_TIES * each.rows if numbers else 0
        if each.different_labels > allowed:
            return f"output '{each.output}' differs from the source's in {each.different_labels} of {each.rows} rows"
    return None
