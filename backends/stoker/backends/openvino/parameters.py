"""`ModelParameters`: config.pbtxt `parameters` of a model on OpenVINO.

precision                  f32 (default) or bf16: what the plugin computes in. Unset, it would itself choose bf16 wherever the CPU has it
batch_buckets              batch sizes to compile for, such as 1,4,16, the last being max_batch_size; or `dynamic`: one model that takes any
                           batch as it is. By default up to five sizes; `dynamic` where other dims vary, too
pipeline_depth             1 to 16 batches of an instance at once, each on a stream of its own; the streams share the threads. Default 1
compare_with_onnxruntime   true: at load, run an ONNX file on ONNX Runtime too, and report how far the outputs differ
inexact_integers           true: serve a model although OpenVINO computes some of its integers in single precision or saturates them; its
                           integer inputs must then lie within -2**24 to 2**24

and by their names in Triton's OpenVINO backend, where they mean the same:

INFERENCE_NUM_THREADS, CPU_THREADS_NUM      threads; 0, the default: the usable cores shared out among the instances
HINT_BF16, ENFORCE_BF16                     YES: precision bf16
NUM_STREAMS, CPU_THROUGHPUT_STREAMS         a number: pipeline_depth
SKIP_OV_DYNAMIC_BATCHSIZE, SKIP_DYNAMIC_BATCHSIZE   YES: compiled for max_batch_size only
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.backends.api.candidate import Violation, parameter_path

#: Compiled models of one instance. Each holds its own reordered copy of the weights (130 to 170 MB for ResNet-50).
MAX_BUCKETS = 16
#: How many there are if the parameters name none.
DEFAULT_BUCKETS = 5


def default_buckets(max_batch_size: int) -> tuple[int, ...]:
    """1, `max_batch_size`, and powers of two between them: of these at most `DEFAULT_BUCKETS`, evenly spaced in the exponent.

    With all powers of two kept, less than half the rows of a batch are padding; with fewer, more may be.
    """
    sizes = [1 << exponent for exponent in range((max_batch_size - 1).bit_length())] + [max_batch_size]
    if len(sizes) <= DEFAULT_BUCKETS:
        return tuple(sizes)
    last = len(sizes) - 1
    return tuple(sizes[round(index * last / (DEFAULT_BUCKETS - 1))] for index in range(DEFAULT_BUCKETS))


def bucket_for(rows: int, buckets: Sequence[int]) -> int:
    """The smallest of `buckets`, which ascend, that takes `rows`. REQUIRES: rows <= buckets[-1]."""
    return buckets[bisect_left(buckets, rows)]


MAX_THREADS = 1024
MAX_PIPELINE_DEPTH = 16

#: `batch_buckets`: one compiled model for all batches.
DYNAMIC = "dynamic"

_FLAGS = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}
_PRECISIONS: Mapping[str, Literal["f32", "bf16"]] = {"f32": "f32", "fp32": "f32", "bf16": "bf16"}
_THREADS = ("INFERENCE_NUM_THREADS", "CPU_THREADS_NUM")
_BF16 = ("HINT_BF16", "ENFORCE_BF16")
_STREAMS = ("NUM_STREAMS", "CPU_THROUGHPUT_STREAMS")
_ONE_BATCH_SIZE = ("SKIP_OV_DYNAMIC_BATCHSIZE", "SKIP_DYNAMIC_BATCHSIZE")
_EXTENSION = "CPU_EXTENSION_PATH"

PARAMETER_KEYS = frozenset(
    {
        "precision", "batch_buckets", "pipeline_depth", "compare_with_onnxruntime", "inexact_integers",
        *_THREADS, *_BF16, *_STREAMS, *_ONE_BATCH_SIZE, _EXTENSION,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """The parsed config.pbtxt `parameters` of one model.

    Attributes:
        precision: What it is computed in.
        buckets: Batch sizes to compile for, ascending; empty: one model that takes any; None: to be chosen.
        is_one_size: Whether to compile for max_batch_size only.
        pipeline_depth: Batches at once.
        threads: For all of an instance; 0: as many as the server gives it.
        is_compared: Whether outputs are held against ONNX Runtime's.
        are_integers_inexact: Whether operators may compute integers inexactly.
    """

    precision: Literal["f32", "bf16"] = "f32"
    buckets: tuple[int, ...] | None = None
    is_one_size: bool = False
    pipeline_depth: int = 1
    threads: int = 0
    is_compared: bool = False
    are_integers_inexact: bool = False

    def buckets_for(self, max_batch_size: int, *, has_variable_dims: bool) -> tuple[int, ...]:
        """Batch sizes to compile for; empty: one model that takes any batch."""
        if self.is_one_size:
            return (max_batch_size,)
        if self.buckets is not None:
            return self.buckets
        return () if has_variable_dims else default_buckets(max_batch_size)


def read_parameters(parameters: Mapping[str, str]) -> ModelParameters:
    """Reads `parameters`. REQUIRES: `parameter_violations` found none in them."""
    return _Reading(parameters).read()


def parameter_violations(parameters: Mapping[str, str], max_batch_size: int | None) -> Iterator[Violation]:
    """Every parameter whose value cannot be taken; `max_batch_size` is None where it is not known."""
    reading = _Reading(parameters)
    read = reading.read()
    yield from reading.wrong
    if read.buckets and max_batch_size is not None and read.buckets[-1] != max_batch_size:
        yield Violation(
            parameter_path("batch_buckets"),
            f"must end with max_batch_size, {max_batch_size}, not {read.buckets[-1]}"
            if max_batch_size
            else "is for models with a batch dimension; max_batch_size is 0",
        )


class _Reading:
    """Parameters on their way in; what is wrong is collected, and the default taken instead."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters
        self.wrong: list[Violation] = []

    def read(self) -> ModelParameters:
        if _EXTENSION in self._parameters:
            self._reject(_EXTENSION, "is not taken: a model's configuration does not bring native code into the server")
        return ModelParameters(
            precision=self._precision(),
            buckets=self._buckets(),
            is_one_size=self._is_one_size(),
            pipeline_depth=self._number(("pipeline_depth", *_STREAMS), 1, MAX_PIPELINE_DEPTH) or 1,
            threads=self._number(_THREADS, 0, MAX_THREADS) or 0,
            is_compared=self._flag("compare_with_onnxruntime"),
            are_integers_inexact=self._flag("inexact_integers"),
        )

    def _precision(self) -> Literal["f32", "bf16"]:
        forced = [key for key in _BF16 if self._flag(key)]
        text = self._parameters.get("precision")
        if text is None:
            return "bf16" if forced else "f32"
        precision = _PRECISIONS.get(text.strip().lower())
        if precision is None:
            self._reject("precision", f"takes f32 or bf16, not '{text[:40]}'")
            return "f32"
        if forced and precision != "bf16":
            self._reject("precision", f"{precision} contradicts {forced[0]}")
        return precision

    def _buckets(self) -> tuple[int, ...] | None:
        text = self._parameters.get("batch_buckets")
        if text is None:
            return None
        if text.strip().lower() == DYNAMIC:
            return ()
        parts = [part.strip() for part in text.split(",")]
        sizes = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 10]
        if len(sizes) != len(parts) or len(sizes) > MAX_BUCKETS or 0 in sizes or sizes != sorted(set(sizes)):
            self._reject(
                "batch_buckets", f"takes '{DYNAMIC}', or at most {MAX_BUCKETS} ascending batch sizes such as 1,4,16, not '{text[:80]}'"
            )
            return None
        return tuple(sizes)

    def _is_one_size(self) -> bool:
        found = [key for key in _ONE_BATCH_SIZE if self._flag(key)]
        if found and "batch_buckets" in self._parameters:
            self._reject("batch_buckets", f"contradicts {found[0]}")
        return bool(found)

    def _number(self, keys: tuple[str, ...], low: int, high: int) -> int | None:
        """The value of the first of `keys` that is there."""
        for key in keys:
            text = self._parameters.get(key)
            if text is None:
                continue
            if key in _STREAMS and text.strip().lower() in ("auto", "numa"):
                continue  # the plugin's own choice would ignore the other instances: the default is ours
            if text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high:
                return int(text)
            self._reject(key, f"takes a whole number from {low} to {high}, not '{text[:40]}'")
        return None

    def _flag(self, key: str) -> bool:
        text = self._parameters.get(key)
        if text is None:
            return False
        value = _FLAGS.get(text.strip().lower())
        if value is None:
            self._reject(key, f"takes {'true or false' if key.islower() else 'YES or NO'}, not '{text[:40]}'")
        return bool(value)

    def _reject(self, key: str, message: str) -> None:
        violation = Violation(parameter_path(key), message)
        if violation not in self.wrong:
            self.wrong.append(violation)
