"""Fields that a configuration may hold but this server does not honour.

Where ignoring a field would change a model's answers, or promise something that is not kept, it is an error; where it only asks for a
faster way on other hardware, or for what Triton leaves out too unless a flag switches it on, a warning. Nothing is ignored in silence.
"""

from collections.abc import Iterator

from stoker.server.config.report import Report
from stoker.server.pb import model_config_pb2 as pb


def check_unsupported(config: pb.ModelConfig, report: Report) -> None:
    """Notes every field of `config` that has no effect here."""
    for path in _refused(config):
        report.error(path, "not supported by this server")
    for path, why in _advisory(config):
        report.warn(path, f"has no effect here: {why}")


def _refused(config: pb.ModelConfig) -> Iterator[str]:
    if config.HasField("ensemble_scheduling"):
        yield "ensemble_scheduling"
    if config.model_repository_agents.agents:
        yield "model_repository_agents.agents"
    if config.model_operations.op_library_filename:
        yield "model_operations.op_library_filename"
    for side in ("input", "output"):
        for index, tensor in enumerate(getattr(config, side)):
            for name in ("is_shape_tensor", "is_non_linear_format_io"):
                if getattr(tensor, name, False):
                    yield f"{side}[{index}].{name}"
    for index, group in enumerate(config.instance_group):
        if group.secondary_devices:
            yield f"instance_group[{index}].secondary_devices"
        if group.passive:
            yield f"instance_group[{index}].passive"


def _advisory(config: pb.ModelConfig) -> Iterator[tuple[str, str]]:
    if config.response_cache.enable:
        yield "response_cache.enable", "there is no response cache, as in a Triton started without --cache-config"
    if config.runtime:
        yield "runtime", "a backend has one runtime"
    if config.cc_model_filenames:
        yield "cc_model_filenames", "models are not chosen by CUDA compute capability"
    if config.model_metrics.metric_control:
        yield "model_metrics", "histogram buckets are the server's"
    optimization = config.optimization
    for name in ("cuda", "input_pinned_memory", "output_pinned_memory"):
        if optimization.HasField(name):
            yield f"optimization.{name}", "no CUDA device is used"
    for name, why in (
        ("priority", "all models share the host alike"),
        ("gather_kernel_buffer_threshold", "no CUDA device is used"),
        ("eager_batching", "batches are assembled when they run"),
    ):
        if getattr(optimization, name):
            yield f"optimization.{name}", why
    for name in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
        if len(getattr(optimization.execution_accelerators, name)):
            yield f"optimization.execution_accelerators.{name}", "the backend's own execution is used"
    for index, group in enumerate(config.instance_group):
        for name in ("resources", "priority"):
            if getattr(group.rate_limiter, name):
                yield f"instance_group[{index}].rate_limiter.{name}", "there is no rate limiter, as in Triton with --rate-limit=off"
        if group.profile:
            yield f"instance_group[{index}].profile", "the backend has no optimization profiles"
        if group.host_policy:
            yield f"instance_group[{index}].host_policy", "the server has no host policies"
