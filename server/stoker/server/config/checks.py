"""Checks of a configuration: ranges, names, paths, queue policies, tensors, unsupported and contradicting fields.

An unsupported field is an error if the model's responses would differ without it, or if it promises what the server does not do. It is a
warning if it only speeds up other hardware, or if Triton ignores it too without a flag. No field is ignored in silence.
"""

import re
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import PurePosixPath

from stoker.backends.api.backend import Backend
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import (
    MAX_BATCH_SIZE,
    MAX_INSTANCES,
    MAX_PRIORITY_LEVELS,
    MAX_RANK,
    MAX_ROW_ELEMENTS,
    MAX_TENSORS,
    MAX_WARMUP_COUNT,
    MAX_WARMUPS,
    Report,
    allowed_names,
    map_path,
)
from stoker.server.core.model_config import Execution
from stoker.server.core.tasks import MOST_NICE
from stoker.server.pb import model_config_pb2 as pb


def check_unsupported(config: pb.ModelConfig, report: Report) -> None:
    """Reports every field of `config` that the server does not support."""
    for path in _rejected(config):
        report.error(path, "not supported by this server")
    for path, why in _advisory(config):
        report.warn(path, f"has no effect here: {why}")


def _rejected(config: pb.ModelConfig) -> Iterator[str]:
    for index, agent in enumerate(config.model_repository_agents.agents):
        if agent.name != CHECKSUM_AGENT:
            yield f"model_repository_agents.agents[{index}]"
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


def _advisory(config: pb.ModelConfig) -> Iterator[tuple[str, str]]:
    if config.runtime:
        yield "runtime", "a backend has one runtime"
    if config.cc_model_filenames:
        yield "cc_model_filenames", "models are not chosen by CUDA compute capability"
    for index, control in enumerate(config.model_metrics.metric_control):
        if control.metric_identifier.family != FIRST_RESPONSES:
            yield f"model_metrics.metric_control[{index}]", f"the buckets of {FIRST_RESPONSES} can be set, those of others are the server's"
    optimization = config.optimization
    for name in ("cuda", "input_pinned_memory", "output_pinned_memory"):
        if optimization.HasField(name):
            yield f"optimization.{name}", "the backend's own memory and execution settings hold"
    for name, why in (
        ("priority", "all models share the host alike"),
        ("gather_kernel_buffer_threshold", "inputs are gathered on the host"),
        ("eager_batching", "batches are assembled when they run"),
    ):
        if getattr(optimization, name):
            yield f"optimization.{name}", why
    for index, group in enumerate(config.instance_group):
        if group.profile:
            yield f"instance_group[{index}].profile", "the backend has no optimization profiles"
        if group.host_policy:
            yield f"instance_group[{index}].host_policy", "the server has no host policies"


def check_decoupled(config: pb.ModelConfig, backend: Backend, report: Report) -> None:
    """Reports contradictions in the configuration of a decoupled model."""
    if not config.model_transaction_policy.decoupled:
        return
    if not backend.streams:
        report.error("model_transaction_policy.decoupled", f"backend '{backend.name}' returns exactly one response to a request")
    if "execution" in config.parameters and config.parameters["execution"].string_value == Execution.INLINE.value:
        report.error('parameters["execution"]', "a decoupled model sends its responses from threads of its own: 'inline' is not possible")
    if config.HasField("dynamic_batching"):
        report.warn("dynamic_batching", "joins no requests of a decoupled model: each is a stream of its own; its queue settings hold")


#: The histogram whose buckets a model may set.
FIRST_RESPONSES = "nv_inference_first_response_histogram_ms"
#: Bounds of its buckets.
MAX_BUCKETS = 64
MAX_BUCKET_MS = 1e9
#: Triton's repository agent that compares files with their checksums.
CHECKSUM_AGENT = "checksum"
#: Its algorithms with the size of their checksums.
HEX_DIGITS = {"md5": 32, "sha256": 64}
_AT = "dynamic_batching"


def check_batching(batching: pb.ModelDynamicBatching, max_batch_size: int | None, report: Report) -> None:
    """Reports the errors of `batching`; `max_batch_size` None: not known yet."""
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


Tensor = pb.ModelInput | pb.ModelOutput

_IMAGE_FORMATS = {pb.ModelInput.FORMAT_NHWC: "FORMAT_NHWC", pb.ModelInput.FORMAT_NCHW: "FORMAT_NCHW"}


def check_tensors(config: pb.ModelConfig, report: Report) -> None:
    """Reports the errors of `input` and `output`, without the model file."""
    sides: tuple[tuple[str, Sequence[Tensor]], ...] = (("input", config.input), ("output", config.output))
    for side, tensors in sides:
        if len(tensors) > MAX_TENSORS:
            report.error(side, f"{len(tensors)} tensors; at most {MAX_TENSORS}")
            continue
        seen: dict[str, int] = {}
        for index, tensor in enumerate(tensors):
            at = f"{side}[{index}]"
            if not tensor.name:
                report.error(f"{at}.name", "must be written")
            elif seen.setdefault(tensor.name, index) != index:
                report.error(f"{at}.name", f"'{tensor.name}' is also the name of {side}[{seen[tensor.name]}]")
            _check_shape(tensor, at, report)
    for index, image in enumerate(config.input):
        if image.format in _IMAGE_FORMATS and image.dims and len(image.dims) != 3:
            report.error(f"input[{index}].format", f"{_IMAGE_FORMATS[image.format]} needs 3 dims, not {len(image.dims)}")


def check_row(dims: Sequence[int], path: str, report: Report, *, allows_variable: bool = True) -> bool:
    """Whether `dims` (found at `path`) is a valid shape of a row of a tensor; reports it if not."""
    if len(dims) > MAX_RANK:
        report.error(path, f"{len(dims)} dimensions; at most {MAX_RANK}")
        return False
    lowest = "-1 (varies) or a size of at least 1" if allows_variable else "a size of at least 1"
    wrong = [index for index, dim in enumerate(dims) if dim < 1 and not (allows_variable and dim == -1)]
    for index in wrong:
        report.error(f"{path}[{index}]", f"takes {lowest}, not {dims[index]}")
    if not wrong and prod(dim for dim in dims if dim > 0) > MAX_ROW_ELEMENTS:
        report.error(path, f"a row would have more than {MAX_ROW_ELEMENTS} elements")
        return False
    return not wrong


def _check_shape(tensor: Tensor, at: str, report: Report) -> None:
    is_sound = check_row(tensor.dims, f"{at}.dims", report)
    if not tensor.HasField("reshape"):
        return
    shape = tensor.reshape.shape
    if not tensor.dims:
        report.error(f"{at}.reshape", "needs 'dims' beside it")
    elif is_sound and check_row(shape, f"{at}.reshape.shape", report) and _between_variables(tensor.dims) != _between_variables(shape):
        # As the variable sizes keep their order, the fixed sizes around each must have the same product.
        report.error(f"{at}.reshape.shape", f"{list(shape)} does not hold the elements of dims {list(tensor.dims)}")


def _between_variables(dims: Sequence[int]) -> list[int]:
    """Products of the runs of fixed sizes before, between and after the variable ones."""
    runs = [1]
    for dim in dims:
        if dim < 0:
            runs.append(1)
        else:
            runs[-1] *= dim
    return runs


_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_OWN_LABELS = frozenset({"model", "version", "reason", "le", "quantile"})


def check_config(config: pb.ModelConfig, model_name: str, report: Report) -> None:
    """Reports the errors of `config`, without the model file."""
    if config.name != model_name:
        report.error("name", f"'{config.name}' differs from the model's folder '{model_name}'; leave it out or write the folder's name")
    if not 0 <= config.max_batch_size <= MAX_BATCH_SIZE:
        report.error("max_batch_size", f"takes 0 to {MAX_BATCH_SIZE}, not {config.max_batch_size}")
    check_path(config.default_model_filename, "default_model_filename", "the version folder", report)
    _check_version_policy(config.version_policy, report)
    check_tensors(config, report)
    for index, output in enumerate(config.output):
        check_path(output.label_filename, f"output[{index}].label_filename", "the model folder", report)
    _check_instances(config, report)
    if config.HasField("dynamic_batching"):
        check_batching(config.dynamic_batching, config.max_batch_size or None, report)
    _check_warmups(config, report)
    _check_response_cache(config, report)
    _check_metrics(config.model_metrics, report)
    _check_agents(config.model_repository_agents, report)
    _check_execution(config, report)
    _check_nice(config, report)
    _check_process(config, report)
    for key in config.metric_tags:
        if not _LABEL.match(key) or key.startswith("__") or key in _OWN_LABELS:
            report.error(
                map_path("metric_tags", key), "not usable as a metric label: letters, digits and _ only, and none of the server's own"
            )


def check_path(written: str, path: str, folder: str, report: Report) -> None:
    """Reports a file name that could lead out of its folder."""
    parts = PurePosixPath(written).parts
    if written and (written.startswith("/") or ".." in parts or not parts or "\\" in written or not written.isprintable()):
        report.error(path, f"'{written[:80]}' is not a path inside {folder}")


def _check_version_policy(policy: pb.ModelVersionPolicy, report: Report) -> None:
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" and policy.latest.num_versions < 1:
        report.error("version_policy.latest.num_versions", "takes 1 or more")
    if choice == "specific":
        if not policy.specific.versions:
            report.error("version_policy.specific.versions", "names no version")
        for index, version in enumerate(policy.specific.versions):
            if version < 1:
                report.error(f"version_policy.specific.versions[{index}]", f"takes 1 or more, not {version}")


def _check_instances(config: pb.ModelConfig, report: Report) -> None:
    total = 0
    names: dict[str, int] = {}
    for index, group in enumerate(config.instance_group):
        at = f"instance_group[{index}]"
        if not 0 <= group.count <= MAX_INSTANCES:
            report.error(f"{at}.count", f"takes 1 to {MAX_INSTANCES}, not {group.count}")
        else:
            total += max(1, group.count)
        _check_resources(group.rate_limiter, f"{at}.rate_limiter", report)
        if group.gpus and group.kind == pb.ModelInstanceGroup.KIND_CPU:
            report.error(f"{at}.gpus", "contradicts kind KIND_CPU")
        if group.name and names.setdefault(group.name, index) != index:
            report.error(f"{at}.name", f"'{group.name}' is also the name of instance_group[{names[group.name]}]")
    if config.instance_group and all(group.passive for group in config.instance_group):
        report.error("instance_group", "all groups are passive: no instance would run requests")
    if total > MAX_INSTANCES:
        report.error("instance_group", f"{total} instances in all; at most {MAX_INSTANCES}")


def _check_resources(limiter: pb.ModelRateLimiter, at: str, report: Report) -> None:
    seen: set[str] = set()
    for index, resource in enumerate(limiter.resources):
        if not resource.name:
            report.error(f"{at}.resources[{index}].name", "must be written")
        elif resource.name in seen:
            report.error(f"{at}.resources[{index}].name", f"'{resource.name}' is there twice")
        seen.add(resource.name)


def _check_agents(agents: pb.ModelRepositoryAgents, report: Report) -> None:
    for index, agent in enumerate(agents.agents):
        for key, value in agent.parameters.items():
            at = map_path(f"model_repository_agents.agents[{index}].parameters", key)
            algorithm, _, path = key.partition(":")
            size = HEX_DIGITS.get(algorithm.lower())
            if agent.name != CHECKSUM_AGENT:
                continue
            if size is None or not path:
                report.error(at, "expected MD5:FILE or SHA256:FILE, with the path of the file in the model folder")
                continue
            check_path(path, at, "the model folder", report)
            if re.fullmatch(f"[0-9a-fA-F]{{{size}}}", value) is None:
                report.error(at, f"'{value[:80]}' is no {algorithm.upper()} checksum, which has {size} hexadecimal digits")


def checksums(config: pb.ModelConfig) -> Iterator[tuple[str, str, str]]:
    """The checksums that a checked configuration names: algorithm, path in the model folder, and hexadecimal digits."""
    for agent in config.model_repository_agents.agents:
        for key, value in sorted(agent.parameters.items()):
            algorithm, _, path = key.partition(":")
            yield algorithm.lower(), path, value.lower()


def _check_metrics(metrics: pb.ModelMetrics, report: Report) -> None:
    for index, control in enumerate(metrics.metric_control):
        buckets = list(control.histogram_options.buckets)
        at = f"model_metrics.metric_control[{index}].histogram_options.buckets"
        if control.metric_identifier.family != FIRST_RESPONSES:
            continue
        if not buckets or len(buckets) > MAX_BUCKETS:
            report.error(at, f"takes 1 to {MAX_BUCKETS} upper bounds in milliseconds, not {len(buckets)}")
        elif buckets != sorted(set(buckets)) or not 0 < buckets[0] <= buckets[-1] <= MAX_BUCKET_MS:
            report.error(at, f"must ascend, from above 0 to {MAX_BUCKET_MS:g}")


def _check_warmups(config: pb.ModelConfig, report: Report) -> None:
    if len(config.model_warmup) > MAX_WARMUPS:
        report.error("model_warmup", f"{len(config.model_warmup)} samples; at most {MAX_WARMUPS}")
        return
    for index, sample in enumerate(config.model_warmup):
        at = f"model_warmup[{index}]"
        if sample.count > MAX_WARMUP_COUNT:
            report.error(f"{at}.count", f"takes 0 to {MAX_WARMUP_COUNT}, not {sample.count}")
        if sample.batch_size > MAX_BATCH_SIZE:
            report.error(f"{at}.batch_size", f"takes 0 to {MAX_BATCH_SIZE}, not {sample.batch_size}")
        for name, tensor in sample.inputs.items():
            here = map_path(f"{at}.inputs", name)
            if tensor.data_type == pb.TYPE_INVALID:
                report.error(f"{here}.data_type", "must be written")
            check_row(tensor.dims, f"{here}.dims", report, allows_variable=False)
            if tensor.WhichOneof("input_data_type") is None:
                report.error(here, "says not what data to send: write zero_data, random_data or input_data_file")
            check_path(tensor.input_data_file, f"{here}.input_data_file", "the model's warmup folder", report)


def _check_response_cache(config: pb.ModelConfig, report: Report) -> None:
    """Triton's rule: a response that depends on more than the inputs cannot be cached."""
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        report.error("response_cache.enable", "contradicts sequence_batching: a response depends on the requests before")
    if config.model_transaction_policy.decoupled:
        report.error("response_cache.enable", "contradicts model_transaction_policy.decoupled: a request has any number of responses")


def _check_execution(config: pb.ModelConfig, report: Report) -> None:
    if "execution" in config.parameters:
        written = config.parameters["execution"].string_value
        known = [execution.value for execution in Execution]
        if written not in known:
            report.error('parameters["execution"]', f"unknown value '{written[:40]}'{allowed_names(written[:40], known)}")


def _check_nice(config: pb.ModelConfig, report: Report) -> None:
    if "nice" not in config.parameters:
        return
    written = config.parameters["nice"].string_value
    if re.fullmatch("[0-9]{1,2}", written, re.ASCII) is None or int(written) > MOST_NICE:
        report.error('parameters["nice"]', f"takes a whole number from 0 to {MOST_NICE}, not '{written[:40]}'")
    elif int(written) and "execution" in config.parameters and config.parameters["execution"].string_value == Execution.INLINE.value:
        report.error('parameters["nice"]', "contradicts execution 'inline': the thread of the event loop keeps its priority")


def _check_process(config: pb.ModelConfig, report: Report) -> None:
    for name, least, most in (("instance_timeout", 0.1, 86_400.0), ("instance_memory_limit_bytes", 1 << 28, 1 << 50)):
        if name not in config.parameters:
            continue
        written = config.parameters[name].string_value
        is_number = re.fullmatch(r"[0-9]{1,16}" if name.endswith("_bytes") else r"[0-9]{1,6}(\.[0-9]{1,6})?", written, re.ASCII) is not None
        if not is_number or not least <= float(written) <= most:
            unit = "bytes" if name.endswith("_bytes") else "seconds"
            report.error(f'parameters["{name}"]', f"takes {least:g} to {most:g} {unit}, not '{written[:40]}'")
        elif "execution" in config.parameters and config.parameters["execution"].string_value != Execution.PROCESS.value:
            report.warn(f'parameters["{name}"]', "has an effect on worker processes only (parameter execution: process)")


def check_is_whole(parsed: ParsedConfig) -> None:
    """Rejects a configuration that omits what only the model file could give.

    Raises:
        ConfigError: no backend, inputs or outputs are written; names each.
    """
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line)
    written = {
        "backend": parsed.backend or parsed.platform,
        "input": parsed.message.input,
        "output": parsed.message.output,
    }
    for field, value in written.items():
        if not value:
            report.error(field, "must be written: --disable-auto-complete-config completes nothing from the model file")
    report.raise_if_any()
