"""ONNX models on ONNX Runtime: on its CPU provider, or on those that instance groups and execution accelerators ask for."""

import dataclasses
import importlib.util
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from stoker.backends.api.agreement import check_agreement, disagreements
from stoker.backends.api.backend import Backend, Figure, Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, reject
from stoker.backends.api.clock import thread_cpu_ns
from stoker.backends.api.errors import BackendSettingError, ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.onnx import one_thread
from stoker.backends.onnx.cuda_devices import CudaDevices
from stoker.backends.onnx.custom_operators import DOMAINS, CustomOperators, operator_violations, with_operators
from stoker.backends.onnx.device_instance import DeviceInstance
from stoker.backends.onnx.element_types import BY_SESSION_NAME
from stoker.backends.onnx.knobs import PARAMETER_KEYS, SessionKnobs, knob_violations, read_knobs
from stoker.backends.onnx.provider_options import CUDA
from stoker.backends.onnx.providers import GPU_KIND, PLAIN, ProviderPlan, absence_of_devices, plan, provider_violations
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
#: The folder below which TensorRT keeps its engines and timings.
CACHE_DIR = "cache-dir"
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
    takes_accelerators = True

    def __init__(
        self,
        *,
        cpu_ns: Callable[[], int] = thread_cpu_ns,
        providers: Callable[[], Sequence[str]] = ort.get_available_providers,
        make_session: Callable[..., ort.InferenceSession] = ort.InferenceSession,
        devices: CudaDevices | None = None,
        device_memory: str = "cuda",
        operators: CustomOperators | None = None,
    ) -> None:
        """The arguments are for tests.

        Args:
            cpu_ns: Returns the CPU time of the thread it is called in.
            providers: Returns the execution providers of the installed onnxruntime.
            make_session: Called as `onnxruntime.InferenceSession`.
            devices: The CUDA devices.
            device_memory: The kind of memory, in ONNX Runtime's spelling, that holds the tensors of an instance on a device.
            operators: The operators of onnxruntime-extensions.
        """
        self._cpu_ns = cpu_ns
        self._providers = tuple(providers())
        self._make_session = make_session
        self._device_memory = device_memory
        self._operators = operators or CustomOperators()
        self._devices = (devices or CudaDevices()) if CUDA in self._providers else None
        # Triton's rule: an instance whose kind is open runs on the GPUs if there are any.
        self.instance_kinds = (GPU_KIND, "KIND_CPU") if self.device_ids() else ("KIND_CPU", GPU_KIND)
        self._cache_folder: Path | None = None
        self._is_tuned = True
        self._instances: weakref.WeakSet[OnnxInstance] = weakref.WeakSet()
        self._lock = threading.Lock()

    def configure(self, settings: Mapping[str, str]) -> None:
        """Takes `default-max-batch-size`, as in Triton, `tuning`: `auto`, or `off` for a fixed number of threads and a fixed arena, and
        `cache-dir`: an existing folder for TensorRT's caches.

        Raises:
            BackendSettingError: an unknown setting, or a value out of its range.
        """
        for name, text in settings.items():
            if name == TUNING:
                if text not in ("auto", "off"):
                    raise BackendSettingError(f"backend '{self.name}': {name} takes auto or off, not '{text[:40]}'")
                self._is_tuned = text == "auto"
                continue
            if name == CACHE_DIR:
                if not Path(text).is_dir():
                    raise BackendSettingError(f"backend '{self.name}': {name} takes an existing folder, not '{text[:200]}'")
                self._cache_folder = Path(text).absolute()
                continue
            if name != DEFAULT_MAX_BATCH_SIZE:
                raise BackendSettingError(
                    f"backend '{self.name}' has no setting '{name[:64]}'; it has {DEFAULT_MAX_BATCH_SIZE}, {TUNING} and {CACHE_DIR}"
                )
            if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= MOST_ROWS):
                raise BackendSettingError(f"backend '{self.name}': {name} takes 1 to {MOST_ROWS}, not '{text[:40]}'")
        if DEFAULT_MAX_BATCH_SIZE in settings:
            self.default_max_batch_size = int(settings[DEFAULT_MAX_BATCH_SIZE])

    def device_ids(self) -> tuple[int, ...]:
        return tuple(range(self._devices.count)) if self._devices else ()

    def why_no_devices(self) -> str:
        return absence_of_devices(self._providers, lambda: len(self.device_ids()))

    def figures(self) -> Iterable[Figure]:
        return self._devices.figures() if self._devices else ()

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return self._facts(self._read(files, model_filename), files, model_filename)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        yield from knob_violations(candidate.parameters, candidate.graph_level)
        yield from operator_violations(candidate)
        yield from provider_violations(candidate, self._providers, has_cache_folder=self._cache_folder is not None)
        if candidate.signature is not None:
            yield from disagreements(candidate.signature, candidate.facts.inputs or (), candidate.facts.outputs or ())
            yield from mixture_violations(candidate.signature)

    def load(self, request: LoadRequest) -> Instance:
        file = self._read(request.files, request.model_filename)
        facts = self._facts(file, request.files, request.model_filename)
        reject(self.check(request.candidate(facts)))
        static_batch_size = check_agreement(request.signature, facts.inputs or (), facts.outputs or ())
        knobs = read_knobs(request.parameters, request.graph_level, request.cpu_threads, bounds_spinning=bounds_spinning(ort.__version__))
        if request.kind == GPU_KIND and (reason := self.why_no_devices()):
            raise ModelLoadError(f"instance_group of {GPU_KIND}: {reason}")
        chosen = plan(
            request.kind, request.device_id, request.parameters, request.gpu_accelerators, request.cpu_accelerators, self._cache_folder
        )
        if chosen.cuda_device is not None:
            return DeviceInstance(
                self._session(request, file, facts, knobs, chosen),
                request.signature,
                device=(self._device_memory, chosen.cuda_device),
                static_batch_size=static_batch_size,
                shrink_arena=knobs.shrink_arena,
            )
        instance = self._on_host(request, file, facts, knobs, chosen, static_batch_size)
        instance.prime()
        with self._lock:
            self._instances.add(instance)
        return instance

    def _on_host(
        self,
        request: LoadRequest,
        file: OnnxFile,
        facts: ModelFacts,
        knobs: SessionKnobs,
        chosen: ProviderPlan,
        static_batch_size: int | None,
    ) -> OnnxInstance:
        has_custom_operators = bool(DOMAINS & file.opsets.keys())
        may_be_small = self._is_tuned and knobs.are_threads_free and chosen.is_plain and not has_custom_operators
        is_tried = may_be_small and one_thread.may_be_enough(request.signature, sum(request.files.sizes_bytes.values()))
        session = self._session(request, file, facts, dataclasses.replace(knobs, intra_op_threads=1) if is_tried else knobs, chosen)
        # Asked of a file only that the runtime takes.
        is_work_open = has_custom_operators or operator_of_open_work(request.files.path(request.model_filename)) is not None
        if is_tried and (is_work_open or not one_thread.is_enough(session, request.signature, static_batch_size, self._cpu_ns)):
            session = self._session(request, file, facts, knobs, chosen)
        elif is_tried:
            log.debug("'%s' version %d: one thread is enough", request.model_name, request.version)
        return OnnxInstance(
            session,
            request.signature,
            static_batch_size=static_batch_size,
            shrink_arena="cpu:0" in knobs.shrink_arena,
            mem_arena=knobs.mem_arena,
            tracks_peaks=self._is_tuned,
            is_work_open=is_work_open,
            is_plain=chosen.is_plain,
        )

    def has_memory_to_release(self) -> bool:
        return any(instance.has_memory_to_release for instance in self._loaded())

    def give_memory_back(self) -> None:
        for instance in self._loaded():
            instance.give_memory_back()

    def _facts(self, file: OnnxFile, files: ModelFiles, model_filename: str) -> ModelFacts:
        return with_operators(facts_of(file, model_filename), file.opsets, files.path(model_filename))

    def _read(self, files: ModelFiles, model_filename: str) -> OnnxFile:
        """The file's declarations, once it is sure that this runtime reads such files and all its weights are at hand."""
        file = declarations(files, model_filename)
        limits = limits_of(ort.__version__)
        complaint = limits.complaint(file.ir_version, file.opsets) if limits else None
        if complaint:
            raise ModelLoadError(f"'{model_filename}': {complaint}")
        self._operators.check(file.opsets, model_filename)
        return file

    def _session(
        self, request: LoadRequest, file: OnnxFile, facts: ModelFacts, knobs: SessionKnobs, chosen: ProviderPlan
    ) -> ort.InferenceSession:
        path = request.files.path(request.model_filename)
        options = session_options(knobs)
        model: str | bytes = str(path)
        if file.zip_maps:
            model = without_zip_maps(path.read_bytes(), file.zip_maps, has_opset="ai.onnx" in file.opsets)
            # What a file would say by where it lies.
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        if chosen.cuda_device is not None and importlib.util.find_spec("nvidia") is not None:
            # The CUDA and cuDNN libraries of the `nvidia-*` packages, which lie where no loader looks.
            ort.preload_dlls()
        self._operators.register(file.opsets, options)
        try:
            # Without the fallback, which prints to stdout and tries the same provider once more.
            session = self._make_session(model, options, providers=[provider.pair for provider in chosen.providers], enable_fallback=0)
        except ORT_ERRORS as error:
            raise ModelLoadError(
                f"onnxruntime {ort.__version__} does not load '{request.model_filename}' ({versions_of(file)}): "
                f"{public_text(error, request.files.root)}"
            ) from error
        _check_providers(session, chosen)
        _check_session(session, facts)
        return session

    def _loaded(self) -> list[OnnxInstance]:
        with self._lock:
            return list(self._instances)


def _check_providers(session: ort.InferenceSession, chosen: ProviderPlan) -> None:
    """Rejects a session that runs without a provider that was asked for: onnxruntime silently leaves out what does not start."""
    if chosen == PLAIN:
        return
    used = session.get_providers()
    left_out = [name for name in chosen.names if name not in used]
    if left_out:
        raise ModelLoadError(
            f"onnxruntime {ort.__version__} could not start {', '.join(left_out)}; it has only {', '.join(used)}: the device's libraries "
            "(CUDA, cuDNN, TensorRT) are missing or of other versions than it was built for. To see which, run "
            'python -c "import onnxruntime; onnxruntime.preload_dlls(); onnxruntime.print_debug_info()"'
        )


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
