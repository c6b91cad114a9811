"""`is_enough`: whether one thread is all that a model's operators need.

A pool of threads pays where operators are large. A small network is no faster with one (64-256-256-10, two threads on two quiet cores: 10.7
us against 9.1 with one), takes twice the CPU time, and beside a model that takes all cores every run waits until its pool's threads have
got a core too, which may be 4 ms. So a small model is tried at load, on the session of one thread that it would then keep.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnxruntime as ort

from stoker.backends.api.layout import Array
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType, element_count
from stoker.backends.onnx_files.runtime import ORT_ERRORS

#: CPU time of a full batch up to which one thread is enough. A hand-over to another thread and back takes 20 to 50 us.
MOST_NS = 200_000
#: Runs of each batch size; the quickest counts.
RUNS = 5
#: Each batch that is tried has at most so many times the rows of the one before.
GROWTH = 8
#: A model of more bytes reads too much in each run for `MOST_NS`, or hardly uses what it holds; making its session twice would take long.
MOST_FILE_BYTES = 16 << 20
#: Most bytes of a full batch's inputs.
MOST_INPUT_BYTES = 1 << 20


def may_be_enough(signature: ModelSignature, file_bytes: int) -> bool:
    """Whether it may be, and `is_enough` can tell: small files, inputs of known and small size."""
    specs = signature.inputs
    if not specs or signature.is_ragged or file_bytes > MOST_FILE_BYTES:
        return False
    if not all(spec.is_static and spec.datatype not in (DataType.BYTES, DataType.BF16) for spec in specs):
        return False
    row_bytes = sum(element_count(spec.model_dims) * spec.datatype.item_bytes for spec in specs)
    return row_bytes * max(1, signature.max_batch_size) <= MOST_INPUT_BYTES


def is_enough(session: ort.InferenceSession, signature: ModelSignature, static_batch_size: int | None, cpu_ns: Callable[[], int]) -> bool:
    """Whether `session`, which has one thread, runs a full batch within `MOST_NS` of CPU time, by `cpu_ns`, that of the calling thread.

    One row is tried first and then ever more, so that nothing is run that takes a multiple of the time and memory of what was quick: a full
    batch may have very many rows. What fails on made-up inputs is no such model.

    REQUIRES: `may_be_enough`, and the model's work depends on the shapes of its inputs alone.
    """
    for rows in _batches(signature, static_batch_size):
        feeds = synthetic_inputs(signature, rows)
        try:
            took_ns = _quickest_ns(session, feeds, cpu_ns)
        except ORT_ERRORS:
            return False
        if took_ns > MOST_NS:
            return False
    return True


def _batches(signature: ModelSignature, static_batch_size: int | None) -> Iterator[int | None]:
    """Rows to try, in turn; None: tensors have no batch dimension."""
    if not signature.is_batched:
        yield None
        return
    full = static_batch_size or signature.max_batch_size
    rows = full if static_batch_size else 1
    while rows < full:
        yield rows
        rows *= GROWTH
    yield full


def synthetic_inputs(signature: ModelSignature, rows: int | None) -> dict[str, Array]:
    """Ones and not zeros: nothing divides by them, and as indices they are as likely to be there."""
    lead = () if rows is None else (rows,)
    return {spec.name: np.ones((*lead, *spec.model_dims), spec.datatype.numpy) for spec in signature.inputs}


def _quickest_ns(session: ort.InferenceSession, feeds: Mapping[str, Array], cpu_ns: Callable[[], int]) -> int:
    quickest_ns = None
    for _ in range(RUNS):
        begun_ns = cpu_ns()
        session.run(None, feeds)
        took_ns = cpu_ns() - begun_ns
        quickest_ns = took_ns if quickest_ns is None else min(quickest_ns, took_ns)
        if took_ns > 10 * MOST_NS:
            break  # it is slow beyond what a cold start explains
    assert quickest_ns is not None
    return quickest_ns
