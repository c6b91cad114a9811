"""Checks of `dynamic_batching`: sizes, priority levels and queue policies."""

from stoker.server.config.limits import MAX_PRIORITY_LEVELS
from stoker.server.config.report import Report
from stoker.server.pb import model_config_pb2 as pb

_AT = "dynamic_batching"


def check_batching(batching: pb.ModelDynamicBatching, max_batch_size: int | None, report: Report) -> None:
    """Notes what is wrong with `batching`; `max_batch_size` None: not known yet."""
    for index, size in enumerate(batching.preferred_batch_size):
        if size < 1 or (max_batch_size is not None and size > max_batch_size):
            highest = "max_batch_size" if max_batch_size is None else f"max_batch_size ({max_batch_size})"
            report.error(f"{_AT}.preferred_batch_size[{index}]", f"takes 1 to {highest}, not {size}")
    levels = batching.priority_levels
    if levels > MAX_PRIORITY_LEVELS:
        report.error(f"{_AT}.priority_levels", f"takes 0 to {MAX_PRIORITY_LEVELS}, not {levels}")
    if levels and not 1 <= batching.default_priority_level <= levels:
        report.error(f"{_AT}.default_priority_level", f"takes 1 to priority_levels ({levels}), not {batching.default_priority_level}")
    if not levels and batching.default_priority_level:
        report.error(f"{_AT}.default_priority_level", "has no meaning without 'priority_levels'")
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            report.error(f"{_AT}.priority_queue_policy[{level}]", f"no such level; priority_levels is {levels}")
    if batching.preserve_ordering:
        _check_ordering(batching, report)


def _check_ordering(batching: pb.ModelDynamicBatching, report: Report) -> None:
    if batching.priority_levels > 1:
        report.error(f"{_AT}.preserve_ordering", f"contradicts {batching.priority_levels} priority levels: they let requests overtake")
    policies = {f"{_AT}.default_queue_policy": batching.default_queue_policy}
    policies |= {f"{_AT}.priority_queue_policy[{level}]": policy for level, policy in batching.priority_queue_policy.items()}
    for path, policy in policies.items():
        if policy.timeout_action == pb.ModelQueuePolicy.DELAY:
            report.error(f"{path}.timeout_action", "DELAY contradicts preserve_ordering: it lets requests overtake")
