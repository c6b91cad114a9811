"""A model's configuration after parsing, normalising and completing, and lists of models. Plain data.

`stoker.server.config` makes it from config.pbtxt (Triton's or Adlik's form), from a JSON override, or from the model file alone.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.backends.api.candidate import Accelerator
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType
from stoker.server.core.ensemble import Ensemble
from stoker.server.core.padding import Padding
from stoker.server.core.sequence import SequenceBatching


@dataclass(frozen=True, slots=True)
class LatestVersions:
    """Serve the `count` highest versions."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class AllVersions:
    """Serve every version in the repository."""


@dataclass(frozen=True, slots=True)
class SpecificVersions:
    """Serve only these versions."""

    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoVersions:
    """Serve nothing (Adlik's `none`)."""


VersionPolicy = LatestVersions | AllVersions | SpecificVersions | NoVersions


class TimeoutAction(enum.Enum):
    """The action for a request whose time in the queue ran out."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """Triton's ModelQueuePolicy for one priority level.

    Attributes:
        timeout_action: REJECT ends the request with an error; DELAY moves it behind the other requests of its level.
        default_timeout_us: Queue timeout of a request that names none; 0 = none.
        allow_timeout_override: Whether a request's own timeout counts (only if smaller than the default, or the default is 0).
        max_queue_size: Requests of this level that may wait; 0 = only the bound of the whole queue holds.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """Triton's ModelDynamicBatching.

    Attributes:
        preferred_batch_sizes: Row counts worth waiting for, ascending; empty: max_batch_size.
        max_queue_delay_us: How long the oldest request may wait for a larger batch, microseconds; 0: it does not wait.
        preserve_ordering: Whether responses are sent in the order of their requests.
        priority_levels: 0: priorities are ignored; n: levels 1..n.
        default_priority_level: Level of a request without a priority.
        default_queue_policy: Policy of levels without an entry in `priority_queue_policies`.
        priority_queue_policies: By level.
    """

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterResource:
    """A resource that an instance holds while it runs, under the rate limiter.

    Attributes:
        name: Its name.
        count: How many.
        is_global: Whether the resource is one for all devices.
    """

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """`count` copies of the model.

    Attributes:
        name: The group's name; instances are `<name>_0`, `<name>_1`, ...
        count: Copies.
        kind: `KIND_CPU`, `KIND_GPU` or `KIND_MODEL`, after AUTO was resolved.
        gpus: Device ids; empty on CPU.
        resources: Resources of the rate limiter that each copy needs.
        is_passive: Whether the copies are loaded, but get no requests.
        limiter_priority: Weight in the rate limiter: a copy of priority 2 gets half the batches of one of priority 1.
    """

    name: str
    count: int
    kind: str = "KIND_CPU"
    gpus: tuple[int, ...] = ()
    resources: tuple[LimiterResource, ...] = ()
    limiter_priority: int = 1
    is_passive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupInput:
    """One input of a warm-up sample: zeros, random values, or the raw little-endian bytes of a file below `<model>/warmup/`."""

    datatype: DataType
    dims: tuple[int, ...]
    is_random: bool = False
    data_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """One input of a warm-up sample: zeros, random values, or the raw little-endian bytes of a file below `<model>/warmup/`."""

    name: str
    batch_size: int
    count: int
    inputs: Mapping[str, WarmupInput]


#: How long a batch, or a stream without a response, may take in a worker process, unless the configuration says otherwise, seconds.
DEFAULT_INSTANCE_TIMEOUT_S = 60.0


class Execution(enum.Enum):
    """Where batches run (config.pbtxt parameter `execution`)."""

    AUTO = "auto"
    THREAD = "thread"
    INLINE = "inline"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model's completed configuration.

    Attributes:
        name: The model's name.
        backend: The backend's canonical name, such as `onnxruntime`.
        platform: The platform string clients see, such as `onnxruntime_onnx`.
        signature: Inputs, outputs, max_batch_size.
        version_policy: Which versions to serve.
        model_filename: The file to load, relative to the version folder; empty where the backend needs none.
        instance_groups: At least one; an ensemble has none.
        dynamic_batching: None: no batching of several requests.
        sequences: None: the model has no sequence batching.
        ensemble: The steps; None: the model is no ensemble.
        padding: How inputs are padded, so that requests of different sizes share batches; None: they are not.
        max_enqueued_requests: Bound of the queue from Adlik's `max_enqueued_batches` (batches x max_batch_size); 0: server default.
        parameters: Key to string value.
        graph_level: `optimization.graph.level`; None if not written.
        gpu_accelerators: `optimization.execution_accelerators.gpu_execution_accelerator`; empty if no instance is of KIND_GPU.
        cpu_accelerators: `optimization.execution_accelerators.cpu_execution_accelerator`.
        label_files: Output name to label file, relative to the model folder.
        warmups: Samples to run before READY.
        execution: Auto, thread, inline or process.
        first_response_bounds_ns: Upper bounds of the buckets of the times to the first response, nanoseconds; None: Triton's.
        response_cache: Whether responses are kept in the response cache of the server, if it has one.
        nice: Nice value added to the threads that run the model (config.pbtxt parameter `nice`).
        instance_timeout_s: How long a batch, or a stream without a response, may take in a worker process, seconds (config.pbtxt
            parameter `instance_timeout`).
        instance_memory_limit_bytes: Bound of the address space of a worker process (config.pbtxt parameter
            `instance_memory_limit_bytes`); None: none.
        metric_tags: Extra labels for metrics.
        wire: The completed `inference.ModelConfig` message, serialised: the response of GetModelConfig.
    """

    name: str
    backend: str
    platform: str
    signature: ModelSignature
    version_policy: VersionPolicy = field(default_factory=LatestVersions)
    model_filename: str
    instance_groups: tuple[InstanceGroup, ...]
    dynamic_batching: DynamicBatching | None = None
    sequences: SequenceBatching | None = None
    padding: Padding | None = None
    ensemble: Ensemble | None = None
    max_enqueued_requests: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)
    graph_level: int | None = None
    gpu_accelerators: tuple[Accelerator, ...] = ()
    cpu_accelerators: tuple[Accelerator, ...] = ()
    label_files: Mapping[str, str] = field(default_factory=dict)
    warmups: tuple[Warmup, ...] = ()
    execution: Execution = Execution.AUTO
    first_response_bounds_ns: tuple[int, ...] | None = None
    response_cache: bool = False
    nice: int = 0
    instance_timeout_s: float = DEFAULT_INSTANCE_TIMEOUT_S
    instance_memory_limit_bytes: int | None = None
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    wire: bytes = b""

    @property
    def inner(self) -> "ModelConfig":
        """This configuration with the inner signature, which includes the tensors that clients do not see; for loading and running
        instances.
        """
        if self.padding is not None and self.padding.mask is not None:
            mask = self.padding.mask
            inputs = tuple(replace(spec, optional=False) if spec.name == mask else spec for spec in self.signature.inputs)
            return replace(self, signature=replace(self.signature, inputs=inputs))
        return self if self.sequences is None else replace(self, signature=self.sequences.extend(self.signature))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One model of the list.

    Attributes:
        name: The name that clients use; the folder's name may differ.
        base_path: The folder that holds its version folders.
        version_policy: Which versions to serve; None: what config.pbtxt says, or the highest.
        version_labels: Versions by label.
        platform: The format of the version folders, as in config.pbtxt; empty: detected from the files.
    """

    name: str
    base_path: Path
    version_policy: VersionPolicy | None = None
    version_labels: Mapping[str, int] = field(default_factory=dict)
    platform: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingDefaults:
    """Batching of models whose configuration does not set it.

    Attributes:
        max_batch_size: Rows of a batch, where the model file sets no bound; None: the server's own default.
        max_queue_delay_us: How long a request waits for a fuller batch.
        preferred_batch_sizes: Rows worth waiting for.
        max_enqueued_batches: Bound of the queue, in batches; 0: the server's own.
        splits_oversized: Whether a request of more rows than a batch runs in parts.
        pads_variable: Whether inputs of open sizes are padded.
    """

    max_batch_size: int | None = None
    max_queue_delay_us: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_enqueued_batches: int = 0
    splits_oversized: bool = False
    pads_variable: bool = False


@dataclass(frozen=True, slots=True)
class LoadOverrides:
    """A configuration (ModelConfig as JSON) and files that replace the repository's for this load.

    Attributes:
        config_json: None: use config.pbtxt.
        files: By path relative to the model folder, such as `1/model.onnx`; only with `config_json`.
    """

    config_json: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
