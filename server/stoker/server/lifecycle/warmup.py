"""Warm-up of an instance (`model_warmup`): the samples, and their runs."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from stoker.backends.api.backend import Arrays
from stoker.backends.api.batch import Array, BatchItem, BatchResult, Share
from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.server.core.model_config import ModelConfig, Warmup, WarmupInput
from stoker.server.lifecycle.raw_tensors import read_raw
from stoker.server.scheduling.sequence_tensors import sample_arrays

#: The folder of `input_data_file` names, below the model folder (as in Triton).
WARMUP_FOLDER = "warmup"


class _Unread:
    """Discards the responses of a decoupled model."""

    def put(self, outputs: Arrays) -> bool:
        return True


def read_samples(config: ModelConfig, model_dir: Path, links_root: Path | None = None) -> Iterator[BatchItem]:
    """The samples in the order of `config.warmups`; no device is used.

    Raises:
        ModelLoadError: a sample does not fit the signature, or its file does not fit its shape.
    """
    for sample in config.warmups:
        yield _item(sample, config, model_dir, links_root)


def run_samples(config: ModelConfig, samples: Sequence[BatchItem], process: Callable[[Sequence[Share]], BatchResult]) -> None:
    """Runs `samples`, in the order of `config.warmups`, each as often as its configuration says.

    Args:
        config: The configuration, with the inner signature.
        samples: As `read_samples` returns them.
        process: Runs a batch on an instance.

    Raises:
        ModelLoadError: a sample failed; the message names it.
    """
    for warmup, sample in zip(config.warmups, samples, strict=True):
        for _ in range(max(1, warmup.count)):
            outcome = process([sample]).outcomes[0]
            if isinstance(outcome, ServingError):
                raise ModelLoadError(f"model_warmup '{warmup.name}' failed: {outcome.message}") from outcome


def _item(sample: Warmup, config: ModelConfig, model_dir: Path, links_root: Path | None) -> BatchItem:
    signature = config.signature
    rows = max(1, sample.batch_size) if signature.is_batched else 1
    own = {} if config.sequences is None else sample_arrays(config.sequences, rows, config.name, is_batched=signature.is_batched)
    unknown = sorted(sample.inputs.keys() - {spec.name for spec in signature.inputs})
    missing = [spec.name for spec in signature.inputs if spec.name not in sample.inputs.keys() | own.keys() and not spec.optional]
    if unknown or missing:
        raise ModelLoadError(f"model_warmup '{sample.name}': unknown inputs {unknown}, missing inputs {missing}")
    arrays = own | {
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
    return read_raw(model_dir, WARMUP_FOLDER, tensor.data_file or "", tensor.datatype, shape, links_root, where=where)
