"""Runs a config's `model_warmup` samples on every instance before its version is READY."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import Array, BatchItem, processor_for
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import element_count
from stoker.server.core.model_config import ModelConfig, Warmup, WarmupInput
from stoker.server.lifecycle.siblings import open_sibling

#: Where `input_data_file` names are looked up, below the model folder (as in Triton).
WARMUP_FOLDER = "warmup"


class _Unread:
    """Takes what a decoupled model answers, and drops it."""

    def put(self, outputs: Arrays) -> bool:
        return True


def warm(config: ModelConfig, instances: Sequence[Instance], model_dir: Path, clock: Clock, links_root: Path | None = None) -> None:
    """Runs every sample on every instance; `links_root` as `open_sibling`.

    Raises:
        ModelLoadError: a sample does not fit the signature, its file does not fit its shape, or running it failed.
    """
    for sample, item in zip(config.warmups, read_samples(config, model_dir, links_root), strict=True):
        for instance in instances:
            processor = processor_for(instance, config.signature, clock)
            for _ in range(max(1, sample.count)):
                outcome = processor.process([item]).outcomes[0]
                if isinstance(outcome, ServingError):
                    raise ModelLoadError(f"model_warmup '{sample.name}' failed: {outcome.message}") from outcome


def read_samples(config: ModelConfig, model_dir: Path, links_root: Path | None = None) -> Iterator[BatchItem]:
    """The samples as they are run, one after the other, in the order of `config.warmups`; touches no device.

    Raises:
        ModelLoadError: a sample does not fit the signature, or its file does not fit its shape.
    """
    for sample in config.warmups:
        yield _item(sample, config.signature, model_dir, links_root)


def _item(sample: Warmup, signature: ModelSignature, model_dir: Path, links_root: Path | None) -> BatchItem:
    unknown = sorted(sample.inputs.keys() - {spec.name for spec in signature.inputs})
    missing = [spec.name for spec in signature.inputs if spec.name not in sample.inputs and not spec.optional]
    if unknown or missing:
        raise ModelLoadError(f"model_warmup '{sample.name}': unknown inputs {unknown}, missing inputs {missing}")
    rows = max(1, sample.batch_size) if signature.is_batched else 1
    arrays = {
        name: _array(sample, name, tensor, (rows, *tensor.dims) if signature.is_batched else tensor.dims, model_dir, links_root)
        for name, tensor in sample.inputs.items()
    }
    names = tuple(spec.name for spec in signature.outputs)
    return BatchItem(arrays, rows, names, responses=_Unread() if signature.is_decoupled else None)


def _array(sample: Warmup, name: str, tensor: WarmupInput, shape: tuple[int, ...], model_dir: Path, links_root: Path | None) -> Array:
    dtype = tensor.datatype.numpy
    if tensor.data_file is not None:
        return _from_file(sample, name, tensor, shape, model_dir, links_root)
    if tensor.datatype.is_bytes:
        return np.full(shape, b"", dtype=np.object_)
    if tensor.is_random:
        generator = np.random.default_rng(0)
        if dtype.kind == "f":
            return generator.random(shape, dtype=np.float32).astype(dtype)
        return generator.integers(0, 2, size=shape).astype(dtype)
    return np.zeros(shape, dtype=dtype)


def _from_file(sample: Warmup, name: str, tensor: WarmupInput, shape: tuple[int, ...], model_dir: Path, links_root: Path | None) -> Array:
    where = f"model_warmup '{sample.name}', input '{name}', input_data_file '{tensor.data_file}'"
    if tensor.datatype.is_bytes:
        raise ModelLoadError(f"{where}: a file can hold fixed-size types only, not BYTES")
    expected = element_count(shape) * tensor.datatype.item_bytes
    path = f"{WARMUP_FOLDER}/{tensor.data_file}"
    with (
        open_sibling(model_dir, path, links_root, what=where, where=f"the model's {WARMUP_FOLDER} folder") as descriptor,
        open(descriptor, "rb", closefd=False) as file,
    ):
        size = os.fstat(descriptor).st_size
        if size != expected:
            raise ModelLoadError(f"{where}: holds {size} bytes, shape {list(shape)} of {tensor.datatype.value} needs {expected}")
        array = np.fromfile(file, dtype=tensor.datatype.numpy, count=element_count(shape))
        if array.size != element_count(shape):
            raise ModelLoadError(f"{where}: changed while it was read")
        return array.reshape(shape)
