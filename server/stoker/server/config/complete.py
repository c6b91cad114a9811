"""Completes a configuration from the model file, with the reason for every value, and chooses the backend."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import PurePosixPath

from google.protobuf import text_format

from stoker.backends.api.backend import Backend
from stoker.backends.api.candidate import Candidate, parameter_path
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import ModelFacts, ModelSignature, TensorSpec
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.api.tensor import BY_CONFIG_NAME
from stoker.server.config.checks import FIRST_RESPONSES, check_decoupled
from stoker.server.config.model_formats import conversion_for, next_step, next_step_of
from stoker.server.config.padding import BUCKETS, PARAMETERS, outer_signature, padding_of
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import (
    FROM_CODE,
    MAX_WARMUP_BYTES,
    ConfigError,
    Finding,
    FindingKind,
    Findings,
    Problem,
    Report,
    allowed_names,
    map_path,
)
from stoker.server.config.scheduling import (
    accelerators,
    complete_batching,
    complete_instances,
    dynamic_batching,
    instance_groups,
    joined_requests,
    most_split_rows,
    sequence_batching,
)
from stoker.server.config.tensors import TensorCompleter, batch_inputs, batch_outputs, check_ragged, specs
from stoker.server.core import openai_contract
from stoker.server.core.model_config import (
    DEFAULT_INSTANCE_TIMEOUT_S,
    AllVersions,
    Execution,
    LatestVersions,
    ModelConfig,
    NoVersions,
    SpecificVersions,
    VersionPolicy,
    Warmup,
    WarmupInput,
)
from stoker.server.core.padding import Padding
from stoker.server.pb import model_config_pb2 as pb


def choose_backend(parsed: ParsedConfig, file_names: Collection[str], registry: BackendRegistry) -> tuple[Backend, str]:
    """The backend that serves a version, and the file that it loads.

    Args:
        parsed: The configuration.
        file_names: The version folder's files, as relative posix paths.
        registry: The installed backends.

    Returns:
        The backend and the file name: `default_model_filename`, or the one of the backend's own file names that exists; empty if the
            backend needs no file.

    Raises:
        ConfigError: no backend or more than one fits, `backend` and `platform` contradict each other, the file named is not there or
            not of the platform's format, or the folder holds several models of the backend.
    """
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line)
    written = _file_of(parsed.message.default_model_filename, file_names, registry)
    spellings = {field: name for field, name in (("backend", parsed.backend), ("platform", parsed.platform)) if name}
    named = {field: backend for field, name in spellings.items() if (backend := _named(field, name, registry, report)) is not None}
    report.raise_if_any()
    is_contradiction = len(named) == 2 and named["backend"] is not named["platform"]
    if is_contradiction and parsed.platform not in named["backend"].platform_filenames:
        report.error("platform", f"'{parsed.platform}' is of backend '{named['platform'].name}', but 'backend' says '{parsed.backend}'")
        report.raise_if_any()
    backend = named.get("backend") or named.get("platform") or _by_files(parsed, written, file_names, registry)
    if written and written not in file_names:
        report.error(
            "default_model_filename", f"the version folder has no file '{written}'{allowed_names(written, sorted(file_names)[:10])}"
        )
        report.raise_if_any()
    own = _own_names(backend, parsed.platform)
    if (
        written
        and parsed.platform in backend.platform_filenames
        and _format(written, backend) not in {_format(name, backend) for name in own}
    ):
        report.error(
            "default_model_filename", f"'{written}' is of another format than platform '{parsed.platform}', which takes {' or '.join(own)}"
        )
        report.raise_if_any()
    filename = written or _own_filename(backend, own, file_names, report)
    if filename and filename not in file_names and (step := conversion_for(own, file_names)) is not None:
        report.error("default_model_filename", f"the version folder has no file '{filename}'; {step}")
        report.raise_if_any()
    return backend, filename


def _file_of(written: str, file_names: Collection[str], registry: BackendRegistry) -> str:
    """The file that `default_model_filename` means: where it names a folder that is a model, the file in it that backends load."""
    if not written or written in file_names:
        return written
    inside = (f"{written.rstrip('/')}/{mark}" for backend in registry.all() for mark in backend.folder_marks)
    return next((name for name in inside if name in file_names), written)


def _own_names(backend: Backend, platform: str) -> tuple[str, ...]:
    """The file names of the backend, of which `platform` may admit some only."""
    return backend.platform_filenames.get(platform, (backend.default_model_filename, *backend.further_model_filenames))


def _format(filename: str, backend: Backend) -> str:
    """What shows the format of a file: its name if its folder is the model, else its suffix."""
    path = PurePosixPath(filename)
    return path.name if path.name in backend.folder_marks else path.suffix.lower()


def _own_filename(backend: Backend, names: Sequence[str], file_names: Collection[str], report: Report) -> str:
    """The backend's default file name if the version has it, else the one of `names` that it has.

    If it has none of them, the first name, or an empty one if no file is needed.
    """
    found = [name for name in names if name in file_names]
    if len(found) > 1 and found[0] != backend.default_model_filename:
        report.error("default_model_filename", f"must be written: the version folder has several models: {', '.join(found)}")
        report.raise_if_any()
    return found[0] if found else names[0] if backend.needs_model_file else ""


def _named(field: str, name: str, registry: BackendRegistry, report: Report) -> Backend | None:
    try:
        return registry.get(name)
    except ModelLoadError as error:
        if name in registry.names():
            report.error(field, error.message)
        else:
            known = {
                spelling: backend
                for backend in registry.all()
                for spelling in (backend.name, *(backend.platforms if field == "platform" else backend.aliases))
            }
            offered = sorted(spelling for spelling, backend in known.items() if not backend.is_for_tests)
            step = next_step_of(name)
            hint = f"; {step}" if step is not None else ""
            report.error(field, f"no {field} '{name}' is installed{allowed_names(name, offered, also=known, most=len(offered))}{hint}")
        return None


def _by_files(parsed: ParsedConfig, written: str, file_names: Collection[str], registry: BackendRegistry) -> Backend:
    known = [backend for backend in registry.all() if backend.default_model_filename]
    if written:
        what = f"default_model_filename '{written}'"
        suffix = PurePosixPath(written).suffix
        fitting = _fitting(known, lambda name: PurePosixPath(name).suffix == suffix)
    else:
        what = f"the version folder, which holds {', '.join(sorted(file_names)[:10]) or 'nothing'}"
        fitting = _fitting(known, lambda name: name in file_names)
    if len(fitting) == 1:
        return fitting[0]
    files = ", ".join(sorted(f"{backend.default_model_filename} ({backend.name})" for backend in known if not backend.is_for_tests))
    if fitting:
        message = f"must be written: {what}, fits {' and '.join(backend.name for backend in fitting)}"
    else:
        message = f"neither 'backend' nor 'platform' is written, and no backend fits {what}; known model files: {files or 'none'}"
        step = next_step([written] if written else file_names)
        message += f"; {step}" if step is not None else ""
    raise ConfigError([Problem(parsed.source, parsed.first_line, "backend", message)])


def _fitting(known: Sequence[Backend], is_fitting: Callable[[str], bool]) -> list[Backend]:
    """The backends whose default file name fits; if there is none, those of which another file name does."""
    by_default = [backend for backend in known if is_fitting(backend.default_model_filename)]
    return by_default or [backend for backend in known if any(map(is_fitting, backend.further_model_filenames))]


def warmups(message: pb.ModelConfig, signature: ModelSignature, report: Report) -> tuple[Warmup, ...]:
    """The warm-up samples; reports those that `signature` would reject."""
    return tuple(_sample(sample, index, signature, report) for index, sample in enumerate(message.model_warmup))


def _sample(sample: pb.ModelWarmup, index: int, signature: ModelSignature, report: Report) -> Warmup:
    at = f"model_warmup[{index}]"
    most = max(1, signature.max_batch_size)
    if sample.batch_size > most:
        report.error(f"{at}.batch_size", f"takes 0 to {most} (max_batch_size is {signature.max_batch_size}), not {sample.batch_size}")
    rows = max(1, sample.batch_size)
    inputs: dict[str, WarmupInput] = {}
    for name, tensor in sample.inputs.items():
        spec = signature.input(name)
        if spec is None:
            report.error(map_path(f"{at}.inputs", name), f"no such input{allowed_names(name, [known.name for known in signature.inputs])}")
            continue
        inputs[name] = _input(tensor, spec, map_path(f"{at}.inputs", name), report)
    missing = [spec.name for spec in signature.inputs if spec.name not in sample.inputs and not spec.optional]
    if missing:
        report.error(f"{at}.inputs", f"lacks input(s) {', '.join(missing)}")
    size_bytes = sum(rows * prod(each.dims) * each.datatype.numpy.itemsize for each in inputs.values())
    if size_bytes > MAX_WARMUP_BYTES:
        report.error(f"{at}.inputs", f"the sample would take {size_bytes} bytes; at most {MAX_WARMUP_BYTES}")
    return Warmup(name=sample.name or f"sample {index}", batch_size=rows, count=max(1, sample.count), inputs=inputs)


def _input(tensor: pb.ModelWarmup.Input, spec: TensorSpec, at: str, report: Report) -> WarmupInput:
    datatype = BY_CONFIG_NAME[pb.DataType.Name(tensor.data_type)]
    if datatype is not spec.datatype:
        report.error(f"{at}.data_type", f"{datatype.config_name}, but the model takes {spec.datatype.config_name}")
    if len(tensor.dims) != len(spec.dims) or any(dim not in (-1, size) for dim, size in zip(spec.dims, tensor.dims, strict=True)):
        report.error(f"{at}.dims", f"{list(tensor.dims)}, but the model takes {list(spec.dims)}")
    return WarmupInput(
        datatype=datatype,
        dims=tuple(tensor.dims),
        is_random=tensor.WhichOneof("input_data_type") == "random_data",
        data_file=tensor.input_data_file or None,
    )


def normalised(message: pb.ModelConfig, backend: str, platform: str, model_filename: str, max_enqueued_requests: int) -> pb.ModelConfig:
    """A copy of a completed message with every field written out that Triton writes out for its clients.

    `max_enqueued_requests` (0: none) is Adlik's bound of the queue, written as Triton's `max_queue_size`.
    """
    full = pb.ModelConfig()
    full.CopyFrom(message)
    full.backend = backend
    full.platform = platform
    full.default_model_filename = model_filename
    if not full.HasField("version_policy"):
        full.version_policy.latest.num_versions = 1
    if full.HasField("dynamic_batching"):
        if full.max_batch_size and not full.dynamic_batching.preferred_batch_size:
            full.dynamic_batching.preferred_batch_size.append(full.max_batch_size)
        if max_enqueued_requests:
            full.dynamic_batching.default_queue_policy.max_queue_size = min(max_enqueued_requests, (1 << 32) - 1)
    full.optimization.input_pinned_memory.SetInParent()
    full.optimization.output_pinned_memory.SetInParent()
    return full


def to_pbtxt(config: ModelConfig) -> str:
    """The completed configuration as the text of an equivalent config.pbtxt."""
    message = pb.ModelConfig.FromString(config.wire)
    # Shown to clients, but without effect in a file.
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if not getattr(message.optimization, name).enable:
            message.optimization.ClearField(name)
    if not message.optimization.ListFields():
        message.ClearField("optimization")
    return text_format.MessageToString(message, use_short_repeated_primitives=True, as_utf8=True)


__all__ = ["Completion", "Finding", "FindingKind", "choose_backend", "complete"]

#: Parameters that the server itself reads for any backend.
_SERVER_PARAMETERS = frozenset(
    {
        "execution",
        "nice",
        "instance_timeout",
        "instance_memory_limit_bytes",
        "split_oversized_requests",
        openai_contract.PARAMETER,
        *PARAMETERS,
    }
)
#: Parameters without effect on the server, kept for those who read the configuration.
_KEPT_PARAMETERS = frozenset({"platform_version", "algorithm"})


@dataclass(frozen=True, slots=True)
class Completion:
    """A completed configuration and the origin of each of its values."""

    config: ModelConfig
    findings: tuple[Finding, ...]


def complete(parsed: ParsedConfig, facts: ModelFacts, backend: Backend, model_filename: str) -> Completion:
    """Completes `parsed` by what the model file declares.

    Args:
        parsed: The configuration as written.
        facts: What `backend` read from the version's file.
        backend: The backend chosen.
        model_filename: The file chosen, relative to the version folder; empty where the backend needs none.

    Raises:
        ConfigError: the configuration and the file contradict each other, together leave something open, or are not what the backend
            can serve; names everything found.
    """
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line, warnings=parsed.remarks)
    findings = Findings()
    message = pb.ModelConfig()
    message.CopyFrom(parsed.message)
    facts = facts.named_as((tensor.name for tensor in message.input), (tensor.name for tensor in message.output))
    _note_choices(parsed, backend, model_filename, findings)
    tensors = TensorCompleter(parsed, message, facts, findings, report, backend.default_max_batch_size)
    tensors.complete()
    is_decoupled = message.model_transaction_policy.decoupled
    if is_decoupled:
        policy, text = "model_transaction_policy", "decoupled: any number of responses to a request"
        if parsed.is_completed_by_code(policy):
            findings.inferred(policy, f"{text}, {FROM_CODE}")
        else:
            findings.written(policy, text)
    check_decoupled(message, backend, report)
    check_ragged(message, backend, report)
    signature = None
    if not report.has_problems:
        signature = ModelSignature(
            specs(message.input),
            specs(message.output),
            message.max_batch_size,
            is_decoupled,
            batch_inputs(message),
            batch_outputs(message),
            most_split_rows(parsed, message, findings, report),
        )
    is_inferred = not tensors.is_skipped and facts.inputs is not None and facts.outputs is not None
    complete_batching(parsed, message, is_inferred=is_inferred, findings=findings, report=report)
    complete_instances(message, backend, findings, report)
    parameters = {key: value.string_value for key, value in sorted(message.parameters.items())}
    graph_level = message.optimization.graph.level if message.optimization.HasField("graph") else None
    _check_parameters(parameters, backend, findings, report)
    if backend.shares_devices and parameters.get("execution") == Execution.PROCESS.value:
        report.warn(
            'parameters["execution"]',
            "each worker process has devices of its own: models in other processes do not compete for them, and the metrics of these "
            "devices are not exported",
        )
    sequences = sequence_batching(message, report, may_reschedule=backend.reschedules)
    if sequences is not None:
        findings.written("sequence_batching", sequences.summary)
        instances = sum(max(1, group.count) * max(1, len(group.gpus)) for group in message.instance_group)
        if backend.runs_model_code and not sequences.states and instances > 1:
            report.error(
                "instance_group",
                f"a sequence has no instance of its own, and this model keeps the state of its sequences itself: takes one instance, not "
                f"{instances}",
            )
    whole = signature if signature is None or sequences is None else sequences.extend(signature)
    padding: Padding | None = None
    if signature is not None and sequences is None:
        padding = padding_of(parameters, signature, report, pads_all=parsed.batching_defaults.pads_variable)
        signature = outer_signature(signature, padding)
        if padding is not None:
            findings.written("padding", padding.summary)
            if not message.HasField("dynamic_batching"):
                report.warn(parameter_path(BUCKETS), "joins no requests without dynamic_batching: each request is padded and runs alone")
    if message.response_cache.enable:
        findings.written("response_cache", "on, if the server has a cache (--cache-config)")
    on_gpu, on_cpu = accelerators(message, backend, findings, report)
    candidate = Candidate(
        facts=facts,
        signature=whole,
        parameters=parameters,
        graph_level=graph_level,
        gpu_accelerators=on_gpu,
        cpu_accelerators=on_cpu,
    )
    for violation in backend.check(candidate):
        report.error(violation.field, violation.message)
    for field, text in openai_contract.violations(signature, parameters):
        report.error(field, text)
    samples = warmups(message, signature, report) if signature is not None else ()
    report.raise_if_any()
    assert signature is not None
    for remark in report.warnings:
        findings.warning(remark.field, str(remark))
    batches = parsed.max_enqueued_batches or parsed.batching_defaults.max_enqueued_batches
    enqueued = batches * max(1, message.max_batch_size)
    config = ModelConfig(
        name=parsed.name,
        backend=backend.name,
        platform=_platform(backend),
        signature=signature,
        version_policy=parsed.version_policy,
        model_filename=model_filename,
        instance_groups=instance_groups(message),
        dynamic_batching=dynamic_batching(message) if sequences is None else joined_requests(message),
        sequences=sequences,
        padding=padding,
        max_enqueued_requests=enqueued,
        parameters=parameters,
        graph_level=graph_level,
        gpu_accelerators=on_gpu,
        cpu_accelerators=on_cpu,
        label_files={output.name: output.label_filename for output in message.output if output.label_filename},
        warmups=samples,
        execution=execution_of(parameters, backend),
        instance_timeout_s=float(parameters.get("instance_timeout", DEFAULT_INSTANCE_TIMEOUT_S)),
        instance_memory_limit_bytes=int(parameters["instance_memory_limit_bytes"]) if "instance_memory_limit_bytes" in parameters else None,
        first_response_bounds_ns=_first_response_bounds(message),
        response_cache=message.response_cache.enable,
        nice=int(parameters.get("nice", "0")),
        metric_tags=dict(sorted(message.metric_tags.items())),
        wire=normalised(message, backend.name, _platform(backend), model_filename, enqueued).SerializeToString(deterministic=True),
    )
    return Completion(config, findings.all())


def _first_response_bounds(message: pb.ModelConfig) -> tuple[int, ...] | None:
    for control in message.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSES:
            return tuple(round(bound_ms * 1_000_000) for bound_ms in control.histogram_options.buckets)
    return None


def execution_of(parameters: Mapping[str, str], backend: Backend) -> Execution:
    """Where the batches of a model with `parameters` run."""
    default = Execution.PROCESS if backend.wants_process else Execution.AUTO
    return Execution(parameters.get("execution", default.value))


def _platform(backend: Backend) -> str:
    return backend.platforms[0] if backend.platforms else backend.name


def _note_choices(parsed: ParsedConfig, backend: Backend, model_filename: str, findings: Findings) -> None:
    if parsed.backend or parsed.platform:
        field = "backend" if parsed.backend else "platform"
        findings.written("backend", f"{backend.name}, from {field} '{getattr(parsed, field)}'")
    else:
        findings.inferred("backend", f"{backend.name}, from the file {model_filename}")
    if parsed.message.default_model_filename:
        findings.written("default_model_filename", model_filename)
    elif model_filename:
        findings.default("default_model_filename", f"{model_filename}, the backend's own")
    text = policy_text(parsed.version_policy)
    (findings.written if parsed.is_written("version_policy") else findings.default)("version_policy", text)


def policy_text(policy: VersionPolicy) -> str:
    """The version policy in words."""
    match policy:
        case LatestVersions(count):
            return f"latest {count}"
        case AllVersions():
            return "all"
        case SpecificVersions(versions):
            return f"specific {list(versions)}"
        case NoVersions():
            return "none"


def _check_parameters(parameters: Mapping[str, str], backend: Backend, findings: Findings, report: Report) -> None:
    known = sorted(backend.parameter_keys | _SERVER_PARAMETERS)
    for key, value in parameters.items():
        path = parameter_path(key)
        findings.written(path, value)
        if key not in known and key not in _KEPT_PARAMETERS and not backend.takes_any_parameter:
            report.warn(path, f"backend '{backend.name}' does not read it{allowed_names(key, known)}")
