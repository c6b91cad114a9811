"""Scheduler, instances and sequence batching of a completed configuration, in the form that the server reads.

Both strategies of `sequence_batching` become one: a sequence's requests run one after the other, and requests of different sequences share
batches. All memory of the model must be in `state`, so that no batch row and no instance is bound to a sequence.
"""

from collections.abc import Sequence
from math import ceil

from stoker.backends.api.backend import Backend
from stoker.backends.api.candidate import Accelerator, parameter_path
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import BY_CONFIG_NAME, DataType, element_count
from stoker.server.config.checks import check_batching, check_path
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import FROM_CODE, MAX_ACCELERATORS, MAX_CANDIDATES, MAX_STATE_BYTES, Findings, Report
from stoker.server.core.model_config import BatchingDefaults, DynamicBatching, InstanceGroup, LimiterResource, QueuePolicy, TimeoutAction
from stoker.server.core.sequence import ControlInput, ControlKind, SequenceBatching, SequenceState
from stoker.server.pb import model_config_pb2 as pb

_KINDS = pb.ModelInstanceGroup


def complete_batching(parsed: ParsedConfig, message: pb.ModelConfig, *, is_inferred: bool, findings: Findings, report: Report) -> None:
    """Adds `dynamic_batching` where the rules say so, and checks it against the final max_batch_size.

    Args:
        parsed: The configuration as written.
        message: A copy of it with completed tensors.
        is_inferred: Whether the tensors come, at least in part, from the model file: then Triton adds a scheduler.
        findings: Receives the decisions.
        report: Receives the problems.
    """
    at = "dynamic_batching"
    if message.HasField(at):
        if parsed.is_completed_by_code(at):
            findings.inferred(at, f"{_described(message)}, {FROM_CODE}")
        else:
            findings.written(at, _described(message))
    elif parsed.is_adlik and message.max_batch_size > 0:
        message.dynamic_batching.SetInParent()
        findings.default(at, "{}: Adlik's form batches every model, without delay unless one is written")
    elif message.HasField("sequence_batching"):
        findings.default(at, "none: sequence_batching is the scheduler")
        return
    elif is_inferred and message.max_batch_size > 1:
        _apply(parsed.batching_defaults, message)
        shown = "{}" if parsed.batching_defaults == BatchingDefaults() else _described(message)
        findings.inferred(at, f"{shown}: the model file allows batching and no scheduler is written")
    else:
        findings.default(at, "none: each request runs alone")
        return
    check_batching(message.dynamic_batching, message.max_batch_size, report)
    if message.max_batch_size == 0:
        report.warn(at, "joins no requests: max_batch_size is 0; its queue settings hold")


#: Most parts of one request: bounds the memory of their bookkeeping.
MAX_PARTS = 1024
_SPLITS = "split_oversized_requests"


def most_split_rows(parsed: ParsedConfig, message: pb.ModelConfig, findings: Findings, report: Report) -> int:
    """Most rows of a request that runs in parts; 0: requests are not split. Reports a parameter that does not fit the model."""
    written = message.parameters[_SPLITS].string_value if _SPLITS in message.parameters else None
    at = parameter_path(_SPLITS)
    if written not in (None, "true", "false"):
        report.error(at, f"takes true or false, not '{written[:40]}'")
        return 0
    reason = _why_unsplit(message)
    if written == "true" and reason:
        report.error(at, f"contradicts {reason}")
    is_split = parsed.batching_defaults.splits_oversized if written is None else written == "true"
    if not is_split or reason:
        return 0
    if written is None:
        findings.default(at, "true, from the batching parameters file")
    return message.max_batch_size * MAX_PARTS


def _why_unsplit(message: pb.ModelConfig) -> str:
    """The setting that excludes parts of requests; empty: none."""
    if not message.max_batch_size:
        return "max_batch_size 0: a request has no rows to split"
    if message.HasField("sequence_batching"):
        return "sequence_batching: each request of a sequence has one row"
    if message.model_transaction_policy.decoupled:
        return "model_transaction_policy.decoupled: a request has any number of responses"
    if message.batch_input or message.batch_output or any(tensor.allow_ragged_batch for tensor in message.input):
        return "ragged batches: a request's outputs need not have one part for each row"
    return ""


def complete_instances(message: pb.ModelConfig, backend: Backend, findings: Findings, report: Report) -> None:
    """Names the instance groups, and resolves their kinds to those that `backend` supports."""
    default = backend.instance_kinds[0]
    if not message.instance_group:
        message.instance_group.add(name=message.name, count=1, kind=_KINDS.Kind.Value(default))
        if default == "KIND_GPU":
            _complete_devices(message.instance_group[0], "instance_group[0]", backend, report)
        devices = ", ".join(map(str, message.instance_group[0].gpus))
        if devices:
            devices_text = f" on {'each of the devices' if ',' in devices else 'device'} {devices}"
        elif backend.runs_model_code:
            devices_text = " without an assigned device"
        else:
            # A backend that also supports KIND_MODEL chooses a device: for it KIND_CPU only states that no device is named.
            is_on_host = default == "KIND_CPU" and "KIND_MODEL" not in backend.instance_kinds
            devices_text = " with every usable core" if is_on_host else f": backend '{backend.name}' chooses its device"
        findings.default("instance_group", f"one {default} instance{devices_text}")
        return
    for index, group in enumerate(message.instance_group):
        at = f"instance_group[{index}]"
        group.name = group.name or f"{message.name}_{index}"
        group.count = max(1, group.count)
        if group.kind == _KINDS.KIND_AUTO:
            resolved = "KIND_GPU" if group.gpus and "KIND_GPU" in backend.instance_kinds else default
            group.kind = _KINDS.Kind.Value(resolved)  # type: ignore[assignment] # the stubs want an instance no value is of
        kind = _KINDS.Kind.Name(group.kind)
        if kind not in backend.instance_kinds:
            allowed = ", ".join(("KIND_AUTO", *backend.instance_kinds))
            report.error(f"{at}.kind", f"{kind} is not supported by backend '{backend.name}'; allowed: {allowed}")
        elif group.gpus and kind != "KIND_GPU":
            report.error(f"{at}.gpus", f"not supported by backend '{backend.name}', which runs on {kind}")
        elif kind == "KIND_GPU":
            _complete_devices(group, at, backend, report)
        on = f" on device {', '.join(map(str, group.gpus))}" if group.gpus else ""
        needs = ", ".join(f"{each.count} {each.name}" for each in group.rate_limiter.resources)
        limited = f", needs {needs} of the rate limiter" if needs else ""
        findings.written(at, f"'{group.name}', {group.count} x {kind}{on}{', passive' if group.passive else ''}{limited}")


def _complete_devices(group: pb.ModelInstanceGroup, at: str, backend: Backend, report: Report) -> None:
    """Triton's rule: a group of KIND_GPU without devices uses all of them."""
    known = backend.device_ids()
    reason = backend.why_no_devices() if not known else ""
    if reason:
        report.error(f"{at}.kind", f"backend '{backend.name}' has no device for KIND_GPU: {reason}")
        return
    for index, device in enumerate(group.gpus):
        if device not in known:
            listed = ", ".join(map(str, known)) or "none"
            report.error(f"{at}.gpus[{index}]", f"backend '{backend.name}' has no device {device}; it has {listed}")
        elif device in group.gpus[:index]:
            report.error(f"{at}.gpus[{index}]", f"device {device} is named twice; write a larger 'count' for more instances on it")
    if not group.gpus:
        group.gpus.extend(known)


_ACCELERATORS = "optimization.execution_accelerators"


def accelerators(
    message: pb.ModelConfig, backend: Backend, findings: Findings, report: Report
) -> tuple[tuple[Accelerator, ...], tuple[Accelerator, ...]]:
    """The execution accelerators of a message with completed instances: those of KIND_GPU, and those of the CPU.

    Those that have no effect cause a warning and are left out.
    """
    given: list[tuple[Accelerator, ...]] = []
    on_device = any(group.kind == _KINDS.KIND_GPU for group in message.instance_group)
    for side in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
        entries = getattr(message.optimization.execution_accelerators, side)
        at = f"{_ACCELERATORS}.{side}"
        if len(entries) > MAX_ACCELERATORS:
            report.error(at, f"{len(entries)} entries; at most {MAX_ACCELERATORS}")
            entries = ()
        elif entries and not backend.takes_accelerators:
            report.warn(at, "the backend's own execution is used")
            entries = ()
        elif entries and side.startswith("gpu") and not on_device:
            report.warn(at, "has no effect: no instance_group is of KIND_GPU")
            entries = ()
        found = tuple(Accelerator(entry.name, dict(sorted(entry.parameters.items())), f"{at}[{i}]") for i, entry in enumerate(entries))
        if found:
            findings.written(at, ", ".join(each.name for each in found))
        given.append(found)
    return given[0], given[1]


def dynamic_batching(message: pb.ModelConfig) -> DynamicBatching | None:
    """The scheduler of a completed message."""
    if not message.HasField("dynamic_batching"):
        return None
    batching = message.dynamic_batching
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(set(batching.preferred_batch_size))),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policies={level: _queue_policy(policy) for level, policy in sorted(batching.priority_queue_policy.items())},
    )


def instance_groups(message: pb.ModelConfig) -> tuple[InstanceGroup, ...]:
    """The instance groups of a completed message."""
    return tuple(
        InstanceGroup(
            name=group.name,
            count=group.count,
            kind=_KINDS.Kind.Name(group.kind),
            gpus=tuple(group.gpus),
            resources=tuple(
                LimiterResource(name=each.name, count=each.count, is_global=getattr(each, "global"))
                for each in group.rate_limiter.resources
            ),
            limiter_priority=max(1, group.rate_limiter.priority),
            is_passive=group.passive,
        )
        for group in message.instance_group
    )


def _queue_policy(policy: pb.ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction.DELAY if policy.timeout_action == pb.ModelQueuePolicy.DELAY else TimeoutAction.REJECT,
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _apply(defaults: BatchingDefaults, message: pb.ModelConfig) -> None:
    """Applies the operator's batching defaults to a model that does not configure batching."""
    batching = message.dynamic_batching
    batching.SetInParent()
    batching.max_queue_delay_microseconds = defaults.max_queue_delay_us
    batching.preferred_batch_size.extend(size for size in defaults.preferred_batch_sizes if size <= message.max_batch_size)


def _described(message: pb.ModelConfig) -> str:
    batching = message.dynamic_batching
    sizes = f"preferred sizes {list(batching.preferred_batch_size)}"
    if not batching.preferred_batch_size:
        sizes = f"preferred size {message.max_batch_size} (max_batch_size, as none is written)" if message.max_batch_size else "no sizes"
    levels = f", {batching.priority_levels} priority levels" if batching.priority_levels else ""
    return f"{sizes}, delay {batching.max_queue_delay_microseconds} us{levels}"


#: Triton's default of `max_sequence_idle_microseconds`.
DEFAULT_IDLE_US = 1_000_000
_ID_TYPES = frozenset({"TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING"})
_AT = "sequence_batching"


def own_inputs(config: pb.ModelConfig) -> frozenset[str]:
    """The model's inputs that clients do not see."""
    batching = config.sequence_batching
    return frozenset((*(control.name for control in batching.control_input), *(state.input_name for state in batching.state)))


def own_outputs(config: pb.ModelConfig) -> frozenset[str]:
    """The model's outputs that clients need not see."""
    return frozenset(state.output_name for state in config.sequence_batching.state)


def sequence_batching(config: pb.ModelConfig, report: Report, *, may_reschedule: bool) -> SequenceBatching | None:
    """The sequence batching of a completed `config`; None: it has none, or reports its errors.

    Args:
        config: The configuration.
        report: Receives the errors.
        may_reschedule: Whether a model of the backend may ask for a further execution of a request.
    """
    if not config.HasField(_AT):
        return None
    batching = config.sequence_batching
    if batching.iterative_sequence and not may_reschedule:
        report.warn(f"{_AT}.iterative_sequence", "models of this backend ask for no further execution: each request is executed once")
    if config.model_transaction_policy.decoupled and not (batching.iterative_sequence and may_reschedule):
        report.error(_AT, "contradicts model_transaction_policy.decoupled, unless a model written in Python has iterative_sequence: true")
    if not 0 <= batching.direct.minimum_slot_utilization <= 1:
        report.error(
            f"{_AT}.direct.minimum_slot_utilization", f"takes a share from 0 to 1, not {batching.direct.minimum_slot_utilization:g}"
        )
    _check_oldest(batching.oldest, config.max_batch_size, report)
    controls = _controls(batching, report)
    states = _states(batching, report)
    names = [tensor.name for tensor in config.input]
    for name in (*(control.name for control in controls), *(state.input.name for state in states)):
        if name in names:
            report.error(_AT, f"'{name}' is also an input of the model's clients, or named twice")
        names.append(name)
    if report.has_problems:
        return None
    instances = sum(max(1, group.count) for group in config.instance_group) or 1
    candidates = batching.oldest.max_candidate_sequences if batching.HasField("oldest") else 0
    most = instances * (candidates or max(1, config.max_batch_size))
    idle_us = batching.max_sequence_idle_microseconds or DEFAULT_IDLE_US
    return SequenceBatching(idle_us, most, controls, states, batching.iterative_sequence)


def joined_requests(config: pb.ModelConfig) -> DynamicBatching | None:
    """The rule by which requests of different sequences share batches."""
    if config.max_batch_size <= 1:
        return None
    oldest, direct = config.sequence_batching.oldest, config.sequence_batching.direct
    sizes = set(oldest.preferred_batch_size)
    if utilization := direct.minimum_slot_utilization:
        # A batch of so many sequences does not wait for more.
        sizes |= set(range(max(1, ceil(utilization * config.max_batch_size)), config.max_batch_size + 1))
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(sizes)),
        max_queue_delay_us=oldest.max_queue_delay_microseconds or direct.max_queue_delay_microseconds,
        preserve_ordering=oldest.preserve_ordering,
    )


def _check_oldest(oldest: pb.ModelSequenceBatching.StrategyOldest, max_batch_size: int, report: Report) -> None:
    candidates = oldest.max_candidate_sequences
    if not 0 <= candidates <= MAX_CANDIDATES:
        report.error(f"{_AT}.oldest.max_candidate_sequences", f"takes 1 to {MAX_CANDIDATES}, or 0 for max_batch_size, not {candidates}")
    for index, size in enumerate(oldest.preferred_batch_size):
        if not 1 <= size <= max(1, max_batch_size):
            report.error(f"{_AT}.oldest.preferred_batch_size[{index}]", f"takes 1 to {max(1, max_batch_size)}, not {size}")


def _controls(batching: pb.ModelSequenceBatching, report: Report) -> tuple[ControlInput, ...]:
    controls: list[ControlInput] = []
    for index, given in enumerate(batching.control_input):
        at = f"{_AT}.control_input[{index}]"
        if not given.name:
            report.error(f"{at}.name", "must be written")
        if len(given.control) != 1:
            report.error(f"{at}.control", f"takes exactly one control, not {len(given.control)}")
            continue
        control = _control(given.name, given.control[0], f"{at}.control[0]", report)
        if control is not None:
            if control.kind in (known.kind for known in controls):
                report.error(f"{at}.control[0].kind", f"{control.kind.value} is there twice")
            controls.append(control)
    return tuple(controls)


def _control(name: str, control: pb.ModelSequenceBatching.Control, at: str, report: Report) -> ControlInput | None:
    kind = ControlKind(pb.ModelSequenceBatching.Control.Kind.Name(control.kind))
    if kind is ControlKind.ID:
        written = pb.DataType.Name(control.data_type)
        if written not in _ID_TYPES:
            report.error(f"{at}.data_type", f"takes {', '.join(sorted(_ID_TYPES))}, not {written}")
            return None
        return ControlInput(kind, name, BY_CONFIG_NAME[written])
    pairs: tuple[tuple[DataType, Sequence[float]], ...] = (
        (DataType.INT32, control.int32_false_true),
        (DataType.FP32, control.fp32_false_true),
        (DataType.BOOL, control.bool_false_true),
    )
    found = [(datatype, values) for datatype, values in pairs if len(values)]
    if len(found) != 1 or len(found[0][1]) != 2:
        report.error(at, f"{kind.value} takes exactly one of int32_false_true, fp32_false_true and bool_false_true, with two values")
        return None
    [(datatype, values)] = found
    return ControlInput(kind, name, datatype, (values[0], values[1]))


def _states(batching: pb.ModelSequenceBatching, report: Report) -> tuple[SequenceState, ...]:
    states: list[SequenceState] = []
    for index, state in enumerate(batching.state):
        at = f"{_AT}.state[{index}]"
        if not state.input_name or not state.output_name:
            report.error(at, "needs input_name and output_name")
        if state.data_type == pb.TYPE_INVALID or not state.dims:
            report.error(at, "needs data_type and dims")
            continue
        initial = list(state.initial_state[0].dims) if state.initial_state else []
        if len(state.initial_state) > 1:
            report.error(f"{at}.initial_state", f"takes one initial state, not {len(state.initial_state)}")
        initial_file = state.initial_state[0].data_file if state.initial_state else ""
        check_path(initial_file, f"{at}.initial_state[0].data_file", "the model's initial_state folder", report)
        if initial and (
            len(initial) != len(state.dims) or any(dim not in (-1, size) for dim, size in zip(state.dims, initial, strict=True))
        ):
            report.error(f"{at}.initial_state[0].dims", f"{initial}, but the state has dims {list(state.dims)}")
        if state.use_same_buffer_for_input_output or state.use_growable_memory:
            report.warn(at, "its buffer settings have no effect here: each request gets the state as an array of its own")
        datatype = BY_CONFIG_NAME[pb.DataType.Name(state.data_type)]
        dims = tuple(state.dims)
        if any(size < -1 or size == 0 for size in dims):
            report.error(f"{at}.dims", f"takes sizes of at least 1, and -1 for one that varies, not {list(dims)}")
            continue
        first_bytes = element_count(initial or [max(1, size) for size in dims]) * datatype.numpy.itemsize
        if first_bytes > MAX_STATE_BYTES:
            report.error(f"{at}.dims", f"make a state of {first_bytes} bytes for each sequence; at most {MAX_STATE_BYTES} are kept")
            continue
        states.append(
            SequenceState(
                TensorSpec(state.input_name, datatype, dims),
                TensorSpec(state.output_name, datatype, dims),
                tuple(initial) or tuple(max(1, dim) for dim in dims),
                initial_file,
            )
        )
    return tuple(states)
