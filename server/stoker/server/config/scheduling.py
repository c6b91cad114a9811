"""The scheduler and the instances of a completed configuration, and their form in the rest of the server."""

from stoker.backends.api.backend import Backend
from stoker.server.config.findings import Findings
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.queue_checks import check_batching
from stoker.server.config.report import Report
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, QueuePolicy, TimeoutAction
from stoker.server.core.model_list import BatchingDefaults
from stoker.server.pb import model_config_pb2 as pb

_KINDS = pb.ModelInstanceGroup


def complete_batching(parsed: ParsedConfig, message: pb.ModelConfig, *, is_inferred: bool, findings: Findings, report: Report) -> None:
    """Adds `dynamic_batching` where the rules say so, and checks it against the final max_batch_size.

    Args:
        parsed: As written.
        message: Its copy, tensors completed.
        is_inferred: Whether the tensors come, at least in part, from the model file: then Triton adds a scheduler.
        findings: Takes what was decided.
        report: Takes problems.
    """
    at = "dynamic_batching"
    if message.HasField(at):
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


def complete_instances(message: pb.ModelConfig, backend: Backend, findings: Findings, report: Report) -> None:
    """Names the instance groups, and resolves their kinds to what `backend` honours."""
    default = backend.instance_kinds[0]
    if not message.instance_group:
        message.instance_group.add(name=message.name, count=1, kind=_KINDS.Kind.Value(default))
        if default == "KIND_GPU":
            _complete_devices(message.instance_group[0], "instance_group[0]", backend, report)
        devices = ", ".join(map(str, message.instance_group[0].gpus))
        if devices:
            place = f" on {'each of the devices' if ',' in devices else 'device'} {devices}"
        else:
            # A backend that knows no other kind runs on the host's cores; of others the kind says only that no device is named.
            place = (
                " with every usable core" if backend.instance_kinds == ("KIND_CPU",) else f": backend '{backend.name}' chooses its device"
            )
        findings.default("instance_group", f"one {default} instance{place}")
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
        findings.written(at, f"'{group.name}', {group.count} x {kind}{on}")


def _complete_devices(group: pb.ModelInstanceGroup, at: str, backend: Backend, report: Report) -> None:
    """Triton's rule: a group of KIND_GPU that names no devices is for all of them."""
    known = backend.device_ids()
    for index, device in enumerate(group.gpus):
        if device not in known:
            listed = ", ".join(map(str, known)) or "none"
            report.error(f"{at}.gpus[{index}]", f"backend '{backend.name}' has no device {device}; it has {listed}")
        elif device in group.gpus[:index]:
            report.error(f"{at}.gpus[{index}]", f"device {device} is named twice; write a larger 'count' for more instances on it")
    if not group.gpus:
        group.gpus.extend(known)


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
        InstanceGroup(name=group.name, count=group.count, kind=_KINDS.Kind.Name(group.kind), gpus=tuple(group.gpus))
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
    """Batching as the operator set it for models that leave it open."""
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
