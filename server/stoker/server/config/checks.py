"""What a configuration must fulfil whatever the model file says: ranges, names, paths and fields that contradict each other."""

import re
from pathlib import PurePosixPath

from stoker.server.config.limits import MAX_BATCH_SIZE, MAX_INSTANCES, MAX_WARMUP_COUNT, MAX_WARMUPS
from stoker.server.config.queue_checks import check_batching
from stoker.server.config.report import Report, map_path
from stoker.server.config.suggestions import allowed_names
from stoker.server.config.tensor_checks import check_row, check_tensors
from stoker.server.core.model_config import Execution
from stoker.server.core.niceness import MOST_NICE
from stoker.server.pb import model_config_pb2 as pb

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_OWN_LABELS = frozenset({"model", "version", "reason", "le", "quantile"})


def check_config(config: pb.ModelConfig, model_name: str, report: Report) -> None:
    """Notes everything wrong with `config` by itself."""
    if config.name != model_name:
        report.error("name", f"'{config.name}' differs from the model's folder '{model_name}'; leave it out or write the folder's name")
    if not 0 <= config.max_batch_size <= MAX_BATCH_SIZE:
        report.error("max_batch_size", f"takes 0 to {MAX_BATCH_SIZE}, not {config.max_batch_size}")
    _check_path(config.default_model_filename, "default_model_filename", "the version folder", report)
    _check_version_policy(config.version_policy, report)
    check_tensors(config, report)
    for index, output in enumerate(config.output):
        _check_path(output.label_filename, f"output[{index}].label_filename", "the model folder", report)
    _check_instances(config, report)
    if config.HasField("dynamic_batching"):
        check_batching(config.dynamic_batching, config.max_batch_size or None, report)
    _check_warmups(config, report)
    _check_response_cache(config, report)
    _check_execution(config, report)
    _check_nice(config, report)
    for key in config.metric_tags:
        if not _LABEL.match(key) or key.startswith("__") or key in _OWN_LABELS:
            report.error(
                map_path("metric_tags", key), "not usable as a metric label: letters, digits and _ only, and none of the server's own"
            )


def _check_path(written: str, path: str, folder: str, report: Report) -> None:
    """Notes a file name that could lead out of its folder."""
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
        if group.gpus and group.kind == pb.ModelInstanceGroup.KIND_CPU:
            report.error(f"{at}.gpus", "contradicts kind KIND_CPU")
        if group.name and names.setdefault(group.name, index) != index:
            report.error(f"{at}.name", f"'{group.name}' is also the name of instance_group[{names[group.name]}]")
    if total > MAX_INSTANCES:
        report.error("instance_group", f"{total} instances in all; at most {MAX_INSTANCES}")


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
            _check_path(tensor.input_data_file, f"{here}.input_data_file", "the model's warmup folder", report)


def _check_response_cache(config: pb.ModelConfig, report: Report) -> None:
    """Triton's rule: what answers depend on more than the inputs cannot be kept."""
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        report.error("response_cache.enable", "contradicts sequence_batching: an answer depends on the requests before")
    if config.model_transaction_policy.decoupled:
        report.error("response_cache.enable", "contradicts model_transaction_policy.decoupled: a request has any number of answers")


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
        report.error('parameters["nice"]', "contradicts execution 'inline': the loop's own thread does not step back")
