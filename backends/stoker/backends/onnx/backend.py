"""ONNX models on ONNX Runtime's CPU provider."""

import dataclasses
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping

import onnxruntime as ort

from stoker.backends.api.agreement import check_agreement, disagreements
from stoker.backends.api.backend import Backend, Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, reject
from stoker.backends.api.clock import thread_cpu_ns
from stoker.backends.api.errors import BackendSettingError, ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.onnx import one_thread
from stoker.backends.onnx.element_types import BY_SESSION_NAME
from stoker.backends.onnx.knobs import PARAMETER_KEYS, SessionKnobs, knob_violations, read_knobs
from stoker.backends.onnx.runtime_limits import bounds_spinning, limits_of
from stoker.backends.onnx.session import OnnxInstance, mixture_violations, session_options
from stoker.backends.onnx_files.declarations import declarations, facts_of, versions_of
from stoker.backends.onnx_files.model_file import OnnxFile
from stoker.backends.onnx_files.runtime import ORT_ERRORS, public_text
from stoker.backends.onnx_files.work import operator_of_open_work
from stoker.backends.onnx_files.zip_map import without_zip_maps

log = logging.getLogger("stoker.backends.onnxruntime")

#: Settings of the whole backend: one by Triton's name, and the switch of its own controllers.
DEFAULT_MAX_BATCH_SIZE = "default-max-batch-size"
TUNING = "tuning"
#: As many as a configuration may write.
MOST_ROWS = 65_536


class OnnxRuntimeBackend(Backend):
    """Serves `.onnx` files. The file's interface is read without loading it, so `inspect` is cheap for models of any size."""

    name = "onnxruntime"
    platforms = ("onnxruntime_onnx", "onnx")
    aliases = ("onnx",)
    default_model_filename = "model.onnx"
    parameter_keys = PARAMETER_KEYS
    takes_ragged = True

    def __init__(self, *, cpu_ns: Callable[[], int] = thread_cpu_ns) -> None:
        """`cpu_ns` gives the CPU time of the thread it is called in."""
        self._cpu_ns = cpu_ns
        self._is_tuned = True
        self._instances: weakref.WeakSet[OnnxInstance] = weakref.WeakSet()
        self._lock = threading.Lock()

    def configure(self, settings: Mapping[str, str]) -> None:
        """Takes `default-max-batch-size`, as in Triton, and `tuning`: `auto`, or `off` for a fixed number of threads and a fixed arena.

        Raises:
            BackendSettingError: an unknown setting, or a value out of its range.
        """
        for name, text in settings.items():
            if name == TUNING:
                if text not in ("auto", "off"):
                    raise BackendSettingError(f"backend '{self.name}': {name} takes auto or off, not '{text[:40]}'")
                self._is_tuned = text == "auto"
                continue
            if name != DEFAULT_MAX_BATCH_SIZE:
                raise BackendSettingError(
                    f"backend '{self.name}' has no setting '{name[:64]}'; it has {DEFAULT_MAX_BATCH_SIZE} and {TUNING}"
                )
            if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= MOST_ROWS):
                raise BackendSettingError(f"backend '{self.name}': {name} takes 1 to {MOST_ROWS}, not '{text[:40]}'")
        if DEFAULT_MAX_BATCH_SIZE in settings:
            self.default_max_batch_size = int(settings[DEFAULT_MAX_BATCH_SIZE])

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return facts_of(_read(files, model_filename), model_filename)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        yield from knob_violations(candidate.parameters, candidate.graph_level)
        if candidate.signature is not None:
            yield from disagreements(candidate.signature, candidate.facts.inputs or (), candidate.facts.outputs or ())
            yield from mixture_violations(candidate.signature)

    def load(self, request: LoadRequest) -> Instance:
        file = _read(request.files, request.model_filename)
        facts = facts_of(file, request.model_filename)
        reject(self.check(request.candidate(facts)))
        static_batch_size = check_agreement(request.signature, facts.inputs or (), facts.outputs or ())
        knobs = read_knobs(request.parameters, request.graph_level, request.cpu_threads, bounds_spinning=bounds_spinning(ort.__version__))
        may_be_small = self._is_tuned and knobs.are_threads_free
        is_tried = may_be_small and one_thread.may_be_enough(request.signature, sum(request.files.sizes_bytes.values()))
        session = _session(request, file, facts, dataclasses.replace(knobs, intra_op_threads=1) if is_tried else knobs)
        # Asked of a file only that the runtime takes.
        is_work_open = operator_of_open_work(request.files.path(request.model_filename)) is not None
        if is_tried and (is_work_open or not one_thread.is_enough(session, request.signature, static_batch_size, self._cpu_ns)):
            session = _session(request, file, facts, knobs)
        elif is_tried:
            log.debug("'%s' version %d: one thread is enough", request.model_name, request.version)
        instance = OnnxInstance(
            session,
            request.signature,
            static_batch_size=static_batch_size,
            shrink_arena=knobs.shrink_arena,
            mem_arena=knobs.mem_arena,
            tracks_peaks=self._is_tuned,
            is_work_open=is_work_open,
        )
        instance.prime()
        with self._lock:
            self._instances.add(instance)
        return instance

    def has_memory_to_release(self) -> bool:
        return any(instance.has_memory_to_release for instance in self._loaded())

    def give_memory_back(self) -> None:
        for instance in self._loaded():
            instance.give_memory_back()

    def _loaded(self) -> list[OnnxInstance]:
        with self._lock:
            return list(self._instances)


def _read(files: ModelFiles, model_filename: str) -> OnnxFile:
    """The file's declarations, once it is sure that this runtime reads such files and all its weights are at hand."""
    file = declarations(files, model_filename)
    limits = limits_of(ort.__version__)
    complaint = limits.complaint(file.ir_version, file.opsets) if limits else None
    if complaint:
        raise ModelLoadError(f"'{model_filename}': {complaint}")
    return file


def _session(request: LoadRequest, file: OnnxFile, facts: ModelFacts, knobs: SessionKnobs) -> ort.InferenceSession:
    path = request.files.path(request.model_filename)
    options = session_options(knobs)
    model: str | bytes = str(path)
    if file.zip_maps:
        model = without_zip_maps(path.read_bytes(), file.zip_maps, has_opset="ai.onnx" in file.opsets)
        # What a file would say by where it lies.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    try:
        # Without the fallback, which prints to stdout and tries the same provider once more.
        session = ort.InferenceSession(
            model,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,
        )
    except ORT_ERRORS as error:
        raise ModelLoadError(
            f"onnxruntime {ort.__version__} does not load '{request.model_filename}' ({versions_of(file)}): "
            f"{public_text(error, request.files.root)}"
        ) from error
    _check_session(session, facts)
    return session


def _check_session(session: ort.InferenceSession, facts: ModelFacts) -> None:
    """Our reading of the file against the runtime's: where they differ, a request could be laid out wrongly."""
    for side, ours, theirs in (("inputs", facts.inputs, session.get_inputs()), ("outputs", facts.outputs, session.get_outputs())):
        read = {tensor.name: tensor.datatype for tensor in ours or ()}
        loaded = {tensor.name: BY_SESSION_NAME.get(tensor.type) for tensor in theirs}
        if read != loaded:
            raise ModelLoadError(
                f"the file declares {side} {', '.join(read)}, onnxruntime {ort.__version__} sees "
                f"{', '.join(f'{tensor.name} {tensor.type}' for tensor in theirs)}: names or types differ"
            )
