"""The plug-in contract: `Backend` inspects, checks and loads, `Instance` runs.

A backend is one folder and one line in the entry-point group `stoker.backends`; the entry point names a `Backend` subclass, which the
server instantiates once, without arguments. Nothing here knows asyncio, protocols or scheduling.

A `ResponseSink` takes the responses of a request to a model that may return any number of responses. A worker's thread puts them, the event
loop takes them. The buffer between them is bounded, so a model that is faster than its client waits.
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from stoker.backends.api.candidate import Accelerator, Candidate, Violation
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendSettingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts, ModelSignature
from stoker.backends.api.output_memory import OutputMemory

if TYPE_CHECKING:
    from stoker.backends.api.calls import ModelCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One sample of a metric; figures of one name share kind and help, and differ in their labels.

    Attributes:
        name: In Prometheus' form, such as `stoker_ipu_busy_seconds_total`: prefix `stoker_`, base units, counters end in `_total`.
        help: One sentence.
        kind: `counter` never decreases, `gauge` may change in both directions, `histogram` counts observations by their size.
        value: The current value; of a histogram, the sum of the observations.
        labels: Such as `{"device": "0"}`.
        buckets: Of a histogram, for each upper bound in ascending order, how many observations were at most that; the last bound is
            infinite. Otherwise empty.
    """

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    buckets: tuple[tuple[float, int], ...] = ()


Parameters = Mapping[str, bool | int | float | str]
"""A request's own parameters by name."""


class ResponseSink(Protocol):
    """Takes the responses of one request."""

    def put(self, outputs: "Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]") -> bool:
        """Adds one response; waits while too many are unread. False: the client has cancelled, so the model must stop.

        Called in the worker's thread.
        """


Arrays = Mapping[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """The arguments of a load of one instance.

    Attributes:
        model_name: For messages.
        version: For messages.
        files: The version's private copy.
        model_filename: The file to load, relative to the version folder; empty where the backend needs none and none of its own is there.
        signature: The completed signature; the backend checks that the file agrees with it.
        parameters: config.pbtxt `parameters`, key to string value.
        graph_level: config.pbtxt `optimization.graph.level`; None where not written.
        gpu_accelerators: config.pbtxt `optimization.execution_accelerators.gpu_execution_accelerator`, for instances of KIND_GPU.
        cpu_accelerators: config.pbtxt `optimization.execution_accelerators.cpu_execution_accelerator`.
        instance_name: Such as `digits_0`.
        cpu_threads: CPU threads this instance may keep busy: the usable cores divided among the instances.
        device_id: The device that `instance_group.gpus` gives this instance; None where the backend chooses one.
        siblings: Instances of this version with the same `device_id`, this one included.
        kind: config.pbtxt `instance_group.kind` of this instance, after AUTO was resolved.
        model_dir: The model's folder in the repository; None where there is none. Only for backends that trust it as they trust the
            operator: its content may change, and its links are not checked.
        config_json: The completed configuration in Triton's JSON form; empty unless `Backend.reads_config`.
        calls: How the model asks other models of the server; None: it cannot.
        owns_process: Whether this process runs this instance only, as a worker process does.
    """

    model_name: str
    version: int
    files: ModelFiles
    model_filename: str
    signature: ModelSignature
    parameters: Mapping[str, str] = field(default_factory=dict)
    graph_level: int | None = None
    gpu_accelerators: tuple[Accelerator, ...] = ()
    cpu_accelerators: tuple[Accelerator, ...] = ()
    instance_name: str = ""
    cpu_threads: int = 1
    device_id: int | None = None
    siblings: int = 1
    kind: str = "KIND_CPU"
    model_dir: Path | None = None
    config_json: str = ""
    calls: "ModelCalls | None" = None
    owns_process: bool = False

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the model's own files, which records of the log show relative to them."""
        return tuple(folder for folder in (self.files.root, self.model_dir) if folder is not None)

    def candidate(self, facts: ModelFacts) -> Candidate:
        """Returns the candidate for `Backend.check`, with the `facts` of this request's file."""
        return Candidate(
            facts=facts,
            signature=self.signature,
            parameters=self.parameters,
            graph_level=self.graph_level,
            gpu_accelerators=self.gpu_accelerators,
            cpu_accelerators=self.cpu_accelerators,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRequest:
    """The arguments of `Backend.describe`.

    Attributes:
        model_name: For messages.
        version: For messages.
        files: The version's private copy.
        model_filename: The file to load, relative to the version folder.
        parameters: config.pbtxt `parameters`, key to string value.
        config_json: The configuration as written, in Triton's JSON form.
        model_dir: As in `LoadRequest`.
    """

    model_name: str
    version: int
    files: ModelFiles
    model_filename: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    config_json: str
    model_dir: Path | None = None


class BoundBatch(Protocol):
    """The tensors of one batch size, bound to a device. Confined to: the one worker that owns their instance."""

    @property
    def inputs(self) -> Arrays:
        """By input name, `[rows, *dims]` (no rows where the model is not batched) of the signature's numpy dtype: written before `run`.
        Plain numbers only.
        """

    def run(self) -> Arrays | None:
        """Runs the model on `inputs`.

        Returns:
            By output name, `[rows, *dims]` (likewise), all outputs of the signature, in arrays that no later call writes. None: the batch
            did not run or its outputs do not fit; `Instance.execute` is called with it next.

        Raises:
            Exception: as `Instance.execute`.
        """


class Instance(abc.ABC):
    """One loaded copy of a model on one device. Confined to: the one worker that owns it."""

    #: The batch size the device always computes; the batch processor pads to it. None: any size up to max_batch_size.
    static_batch_size: int | None = None
    #: Most batches in flight; they complete in order.
    pipeline_depth: int = 1
    #: Whether `execute` only computes on this host's cores, without sleeping, pacing or waiting for a device, and its work depends only on
    #: the shapes of the inputs, not on their values. Only then may a short batch run inline on the event loop (config.pbtxt `execution:
    #: auto`), because measured times must predict later ones.
    only_computes: bool = False
    #: Whether its batch processor reads the attributes of `RequestShare`.
    reads_requests: bool = False
    #: Whether it may call other models (`LoadRequest.calls`) while it runs a batch.
    calls_models: bool = False
    #: Makes the `BatchProcessor` of an instance, its signature and a clock; None: `BatchProcessor` itself.
    batch_processor: "Callable[[Any, ModelSignature, Clock], Any] | None" = None

    @abc.abstractmethod
    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        """Runs one batch.

        Args:
            inputs: By input name, each `[rows, *model_dims]` (no leading dimension where the model is not batched), C-contiguous, of
                the signature's numpy dtype. Valid until this call returns: copy what must live longer.
            output_names: Outputs some request of the batch wants; at least these must be in the result.

        Returns:
            By output name, each `[rows, *model_dims]`. The arrays must be fresh or at least not written again by a later call.

        Raises:
            ServingError: with a message for the client. Any other exception is reported as BACKEND_FAILED.
            Unavailable: the device is lost, hangs or is being reset, whatever the request: if a model has several instances, this one is
                ejected for a time. All other errors are attributed to the request.
        """

    def bound(self, rows: int) -> BoundBatch | None:
        """The bound tensors of a batch of `rows` rows or more, which save `execute` a copy of every tensor; None: there are none.

        The batch processor asks where the model is not ragged, all its inputs are required, and `pipeline_depth` is 1. It keeps the result
        for later batches of `rows` rows until a `run` returns None. `rows` is 1 where the model is not batched.
        """
        return None

    def place_outputs(self, memory: OutputMemory) -> None:  # noqa: B027 - most instances get their outputs from an engine
        """Allows `execute` to return outputs in arrays of `memory`, which saves a copy of them.

        A worker process calls it once, after the load, if `pipeline_depth` is 1.
        """

    def close(self) -> None:  # noqa: B027 - most instances have nothing to release
        """Releases the device's resources. Called once, after the last `execute` has returned."""


class Backend(abc.ABC):
    """A kind of model file and the engine that runs it."""

    #: config.pbtxt `backend`, such as `onnxruntime`.
    name: str
    #: config.pbtxt `platform` spellings that choose this backend; the first is what the server itself writes.
    platforms: tuple[str, ...] = ()
    #: Further accepted spellings of `backend`.
    aliases: tuple[str, ...] = ()
    #: What `default_model_filename` is when the config leaves it open; also how a backend is inferred from a version folder.
    default_model_filename: str
    #: Further file names: looked for where the version has no `default_model_filename`. A version may have one of them only. They select
    #: this backend as well, unless the version has the `default_model_filename` of another.
    further_model_filenames: tuple[str, ...] = ()
    #: The file names that a `platform` admits, for platforms that name one format of several. A platform that is not among `platforms` is
    #: another backend's, unless `backend` names this one.
    platform_filenames: Mapping[str, tuple[str, ...]] = {}
    #: Files such as `saved_model.pb` whose folder is the model: `default_model_filename` may name the folder instead of the file.
    folder_marks: tuple[str, ...] = ()
    #: Whether a version needs a model file. If not, an empty version folder will do (git keeps one by a `.gitkeep`), and
    #: `LoadRequest.model_filename` is empty where none of the backend's own file names is there.
    needs_model_file: bool = True
    #: Whether it serves no real models, but tries out clients and servers: error texts do not offer it to who looks for a backend.
    is_for_tests: bool = False
    #: `parameters` keys this backend reads; other keys only warn.
    parameter_keys: frozenset[str] = frozenset()
    #: config.pbtxt `instance_group.kind` values this backend can honour; the first is what KIND_AUTO becomes.
    instance_kinds: tuple[str, ...] = ("KIND_CPU",)
    #: Whether it takes `optimization.execution_accelerators`; if not, the server warns that they have no effect.
    takes_accelerators: bool = False
    #: Whether its instances are `StreamingInstance`s, so that config.pbtxt may say `model_transaction_policy { decoupled: true }`.
    streams: bool = False
    #: Whether its models may ask for a further execution of a request (`sequence_batching.iterative_sequence`).
    reschedules: bool = False
    #: Whether it takes `allow_ragged_batch`, `batch_input` and `batch_output`: its instances use `RaggedProcessor` where they are there.
    takes_ragged: bool = False
    #: Whether its models run in worker processes unless config.pbtxt says otherwise (parameter `execution`).
    wants_process: bool = False
    #: Whether its instances share devices that this process simulates or accounts for: worker processes do not share them.
    shares_devices: bool = False
    #: Whether `LoadRequest.config_json` is filled in.
    reads_config: bool = False
    #: Whether models read `parameters` themselves, so that no key is unknown.
    takes_any_parameter: bool = False
    #: Whether its model files are code: `--allow-python-models` says which may run.
    runs_model_code: bool = False
    #: The max_batch_size of a model that says nothing of it and whose file allows batching; 0: the server's own.
    default_max_batch_size: int = 0

    def configure(self, settings: Mapping[str, str]) -> None:
        """Takes the operator's settings for the whole backend (`--backend-config`). Called at most once, before the first load.

        Raises:
            BackendSettingError: a setting this backend does not have, or a value it cannot take; nothing is changed then.
        """
        raise BackendSettingError(f"backend '{self.name}' has no settings, so '{next(iter(settings), '')}' is none of them")

    def device_ids(self) -> tuple[int, ...]:
        """Ids that `instance_group.gpus` may name: devices that work. A group of KIND_GPU that names none is for each of them."""
        return ()

    def why_no_devices(self) -> str:
        """Returns the reason why `device_ids` is empty, what is installed, and the remedy; empty if there is nothing to say."""
        return ""

    def figures(self) -> Iterable[Figure]:
        """Returns metrics of its devices. Called at every scrape on the event loop, so it must only read existing values."""
        return ()

    def has_memory_to_release(self) -> bool:
        """Whether a large batch has run since `give_memory_back`.

        If so, the server releases memory at its next idle time, however short the work before it was.
        """
        return False

    def give_memory_back(self) -> None:  # noqa: B027 - most backends keep nothing that grows with requests
        """Releases memory that grew with the largest batch.

        Called when the server is idle, in a separate thread, concurrently with any `execute`.
        """

    def notices(self) -> Iterable[str]:
        """Returns notices for the operator about the loaded models, one line each, shown at start."""
        return ()

    @abc.abstractmethod
    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        """Reads what the file declares, without a device and without running anything.

        Raises:
            ModelLoadError: the file is missing, truncated, corrupt, or of a version this runtime does not read.
        """

    def describe(self, request: DescribeRequest) -> str | None:
        """Completes the written configuration by the model's own code, which runs in a process of its own. May take long.

        Returns:
            The completed configuration in Triton's JSON form; None: the backend's models do not complete theirs.

        Raises:
            ModelLoadError: the code cannot be run, or failed.
        """
        return None

    def check(self, candidate: Candidate) -> Iterable[Violation]:
        """Returns all violations of `candidate` that can be found without a device.

        The server and `stoker check` both call this before a load, so their results agree. It returns all violations at once, including
        those of parameters if the signature is None.
        """
        return ()

    def interpreter(self, request: LoadRequest) -> Path | None:
        """The Python that runs the worker process of an instance; None: the server's own.

        Raises:
            ModelLoadError: the environment that the model names cannot be used.
        """
        return None

    @abc.abstractmethod
    def load(self, request: LoadRequest) -> Instance:
        """Loads one instance. Runs in a worker thread; may take long. REQUIRES: `check` found no violation.

        Raises:
            ModelLoadError: the file cannot be loaded, contradicts the signature, or exceeds the device's limits.
        """
