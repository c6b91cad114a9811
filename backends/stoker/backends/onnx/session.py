"""One ONNX Runtime session as an `Instance`."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnxruntime as ort

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import Array
from stoker.backends.api.candidate import Violation
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.output_memory import OutputMemory
from stoker.backends.api.ragged_batch import RaggedProcessor
from stoker.backends.api.tensor import DataType, element_count
from stoker.backends.onnx.bindings import Bindings, BoundTensors, are_worth_it
from stoker.backends.onnx.knobs import GraphOptimization, SessionKnobs
from stoker.backends.onnx.memory_peaks import LARGE_BYTES, PeakTracker
from stoker.backends.onnx.output_binding import OutputBinding, has_known_outputs
from stoker.backends.onnx.values import array_of, bfloat16_value, decoded, encoded
from stoker.backends.onnx_files.runtime import ORT_ERRORS, public_text

log = logging.getLogger("stoker.backends.onnxruntime")

_GRAPH_LEVELS = {
    GraphOptimization.NONE: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    GraphOptimization.BASIC: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    GraphOptimization.EXTENDED: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    GraphOptimization.ALL: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def session_options(knobs: SessionKnobs) -> ort.SessionOptions:
    """ONNX Runtime's form of `knobs`."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = knobs.intra_op_threads
    options.inter_op_num_threads = knobs.inter_op_threads
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if knobs.parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = knobs.mem_arena
    options.enable_mem_pattern = knobs.mem_pattern
    options.graph_optimization_level = _GRAPH_LEVELS[knobs.graph]
    # Whatever goes wrong comes back as an exception with the same text; on stderr it would break up the server's own log. 4 = fatal only.
    options.log_severity_level = 4
    for key, value in knobs.entries.items():
        options.add_session_config_entry(key, value)
    return options


class OnnxInstance(Instance):
    """A session on CPU. Confined to: the one worker that owns it."""

    def __init__(
        self,
        session: ort.InferenceSession,
        signature: ModelSignature,
        *,
        static_batch_size: int | None,
        shrink_arena: bool,
        mem_arena: bool = True,
        tracks_peaks: bool = True,
        is_work_open: bool = False,
        is_plain: bool = True,
    ) -> None:
        """Takes over `session`, whose inputs and outputs agree with `signature`, in which `mixture_violations` found nothing.

        `tracks_peaks`: whether a run that is much larger than usual shrinks the arena.
        `is_work_open`: what requests hold, beside their shapes, decides how much there is to do.
        `is_plain`: only the CPU's own execution provider computes; another one may wait, and takes no memory that is bound on the host.
        """
        self.static_batch_size = static_batch_size
        # Strings are as long as they are, whatever their tensor's shape.
        self.only_computes = is_plain and not is_work_open and not _named(signature.inputs, DataType.BYTES)
        self.batch_processor = RaggedProcessor if signature.is_ragged else None
        self._session: ort.InferenceSession | None = session
        self._shrinking = ort.RunOptions()
        self._shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._run_options: ort.RunOptions | None = self._shrinking if shrink_arena else None
        # Ends before the first operator, and the arena shrinks all the same.
        self._only_shrinking = ort.RunOptions()
        self._only_shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._only_shrinking.terminate = True
        has_one_size = all(spec.is_static for spec in signature.inputs) and not is_work_open
        keeps_memory = tracks_peaks and mem_arena and not shrink_arena and is_plain
        self._peaks = PeakTracker() if keeps_memory and not has_one_size else None
        # Outputs lie in the arena until they are sent. Slow clients may hold several batches at a time, and then an idle model would keep
        # them all.
        self._gives_back = keeps_memory and (not has_one_size or _output_bytes(signature) > LARGE_BYTES)
        #: The shapes of the smallest batch that ran, for `give_memory_back`, and what it took.
        self._least: tuple[int, Mapping[str, tuple[int, ...]]] | None = None
        self._signature = signature
        self._dtypes = {spec.name: spec.datatype for spec in signature.inputs}
        #: Bytes of the inputs or outputs of the largest batch since memory was released.
        self._largest_bytes = 0
        self._outputs = [spec.name for spec in signature.outputs]
        self._strings_in = _named(signature.inputs, DataType.BYTES)
        self._strings_out = _named(signature.outputs, DataType.BYTES)
        # numpy has no bfloat16: such tensors travel as OrtValues, and an output among them takes all others of its run along.
        self._bfloat16_in = _named(signature.inputs, DataType.BF16)
        self._bfloat16_out = _named(signature.outputs, DataType.BF16)
        self._bindings = Bindings(session, signature, self._run_options) if is_plain and are_worth_it(signature) else None
        self._takes_memory = is_plain and has_known_outputs(signature)
        self._output_binding: OutputBinding | None = None

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        if self._strings_in:
            inputs = {name: decoded(name, array) if name in self._strings_in else array for name, array in inputs.items()}
        has_failed = self._bindings is not None and self._bindings.take_failure()
        try:
            outputs = self._run(inputs, output_names)
        except ORT_ERRORS as error:
            raise BackendFailed(public_text(error)) from error
        if has_failed:
            # The batch was not at fault: the model is no case for bindings.
            self._bindings = None
        if self._strings_out:
            outputs = {name: encoded(array) if name in self._strings_out else array for name, array in outputs.items()}
        return outputs

    def place_outputs(self, memory: OutputMemory) -> None:
        if self._takes_memory and self._session is not None:
            self._output_binding = OutputBinding(self._session, self._signature, memory)

    def bound(self, rows: int) -> BoundTensors | None:
        return None if self._bindings is None else self._bindings.tensors(rows)

    def prime(self) -> None:
        """Runs zeros in the smallest shapes, where shapes vary: the arena never gives back the region of its first allocation.

        Models that do not run in them are served as they are: their first batch then decides on that region.
        """
        session, signature = self._session, self._signature
        if self._peaks is None or session is None or signature.is_ragged or not self.only_computes:
            return
        rows = (self.static_batch_size or 1,) if signature.is_batched else ()
        shapes = {spec.name: (*rows, *(1 if size < 0 else size for size in spec.model_dims)) for spec in signature.inputs}
        try:
            self._run_with(session, self._nothing(shapes), self._outputs, None)
        except ORT_ERRORS as error:
            log.debug("zeros in the smallest shapes do not run: %s", public_text(error))
        else:
            self._least = 0, shapes

    @property
    def has_memory_to_release(self) -> bool:
        """Whether a batch of more than `LARGE_BYTES` has run since `give_memory_back`."""
        return self._largest_bytes > LARGE_BYTES

    def give_memory_back(self) -> None:
        """Has the arena give back all that no tensor lies in, if sizes vary or outputs are large. Any thread may call it, beside a run.

        ONNX Runtime does so at the end of a run only. So this begins one on the shapes of the smallest batch so far, and terminates it
        before its first operator: zeros are nothing that a client has sent, and a model may loop on them for ever.
        """
        session, least = self._session, self._least
        if not self._gives_back or session is None or least is None or not self._largest_bytes:
            return
        self._largest_bytes = 0
        with contextlib.suppress(*ORT_ERRORS):  # how a terminated run ends
            self._run_with(session, self._nothing(least[1]), self._outputs, self._only_shrinking)

    def _nothing(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """Zeros of those shapes by input."""
        return {name: _zeros(self._dtypes[name], shape) for name, shape in shapes.items()}

    def close(self) -> None:
        if self._bindings is not None:
            self._bindings.close()
        self._session = self._bindings = self._output_binding = None

    def _run(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        session = self._session
        if session is None:
            raise BackendFailed("the session is closed")
        if not self._gives_back:
            return self._run_placed(session, inputs, output_names, self._run_options)
        size_bytes = sum([array.nbytes for array in inputs.values()])
        # Before the run: one that fails leaves its memory behind, too.
        self._largest_bytes = max(size_bytes, self._largest_bytes)
        if self._least is None:
            self._least = sys.maxsize, _shapes(inputs)
        is_rare = self._peaks is not None and self._peaks.gives_back(size_bytes)
        outputs = self._run_placed(session, inputs, output_names, self._shrinking if is_rare else None)
        if size_bytes < self._least[0]:
            self._least = size_bytes, _shapes(inputs)
        # Read again: memory may have been given back beside the run.
        self._largest_bytes = max(self._largest_bytes, size_bytes, *(array.nbytes for array in outputs.values()))
        return outputs

    def _run_placed(
        self, session: ort.InferenceSession, inputs: Arrays, output_names: Sequence[str], options: ort.RunOptions | None
    ) -> Arrays:
        """Runs a batch; large outputs are written where `place_outputs` says."""
        binding = self._output_binding
        if binding is None:
            return self._run_with(session, inputs, output_names, options)
        placed = binding.run(inputs, output_names, options)
        if placed is not None:
            return placed
        outputs = self._run_with(session, inputs, output_names, options)
        if binding.has_failed:
            # The batch was not at fault: the model's outputs are not what it declares.
            self._output_binding = None
        return outputs

    def _run_with(
        self, session: ort.InferenceSession, inputs: Arrays, output_names: Sequence[str], options: ort.RunOptions | None
    ) -> Arrays:
        if not self._bfloat16_out.isdisjoint(output_names):
            return self._run_values(session, inputs, output_names, options)
        feeds: Mapping[str, object] = inputs
        if self._bfloat16_in:
            feeds = {name: bfloat16_value(array) if name in self._bfloat16_in else array for name, array in inputs.items()}
        # The session's inner `run` would save 2 us of 6, and is not public.
        return dict(zip(output_names, session.run(output_names, feeds, options), strict=True))

    def _run_values(
        self, session: ort.InferenceSession, inputs: Arrays, output_names: Sequence[str], options: ort.RunOptions | None
    ) -> Arrays:
        feeds = {
            name: bfloat16_value(array) if name in self._bfloat16_in else ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in inputs.items()
        }
        values = session.run_with_ort_values(output_names, feeds, options)
        given = {value.data_ptr() for value in feeds.values()}
        outputs = {name: array_of(value) for name, value in zip(output_names, values, strict=True)}
        # An output that is an input, too, is the input's memory, which the next batch overwrites.
        return {name: array.copy() if array.ctypes.data in given else array for name, array in outputs.items()}


def mixture_violations(signature: ModelSignature) -> Iterator[Violation]:
    """Returns violations for tensors that ONNX Runtime's Python interface cannot run together."""
    strings = sorted(_named(signature.inputs, DataType.BYTES))
    for index, output in enumerate(signature.outputs):
        if strings and output.datatype is DataType.BF16:
            yield Violation(
                f"output[{index}].data_type",
                f"string input(s) {', '.join(strings)} beside bfloat16 output {output.name}: "
                "ONNX Runtime's Python interface cannot run both; cast the output in the graph",
            )


def _output_bytes(signature: ModelSignature) -> int:
    """The outputs of the largest batch, as far as their sizes are declared."""
    rows = max(1, signature.max_batch_size)
    return rows * sum(element_count(spec.model_dims) * spec.datatype.item_bytes for spec in signature.outputs if spec.is_static)


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def _zeros(datatype: DataType, shape: tuple[int, ...]) -> Array:
    """Zeros, or empty strings as ONNX Runtime takes them."""
    return np.full(shape, "", np.object_) if datatype is DataType.BYTES else np.zeros(shape, datatype.numpy)


def _named(specs: Sequence[TensorSpec], datatype: DataType) -> frozenset[str]:
    return frozenset(spec.name for spec in specs if spec.datatype is datatype)
