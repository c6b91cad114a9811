"""TensorFlow Serving's configuration files in protobuf text format: models, batching, monitoring.

They are read like config.pbtxt: every problem is reported with its line. An unsupported field is rejected; a field with another meaning
gets a warning.
"""

from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from stoker.server.config.report import MAX_BATCH_SIZE, Report, field_parents, map_path
from stoker.server.config.text_format import Binder, Block, Entry, Scalar, parse_tree
from stoker.server.core.model_config import AllVersions, BatchingDefaults, LatestVersions, ListedModel, SpecificVersions, VersionPolicy
from stoker.server.pb.tensorflow_serving.config import model_server_config_pb2, monitoring_config_pb2, ssl_config_pb2
from stoker.server.pb.tensorflow_serving.servables.tensorflow import session_bundle_config_pb2

M = TypeVar("M", bound=Message)
#: TensorFlow Serving's own default, which clients of a server with batching rely on.
DEFAULT_MAX_BATCH_SIZE: Final = 1000
#: TensorFlow Serving's name of its model format; this server detects the format from the files.
_TENSORFLOW: Final = "tensorflow"
_NO_BOUND: Final = 1 << 31
_MAX_MODELS: Final = 4096
#: Fields of TensorFlow Serving that our copy of its messages does not have, and why.
_LOGGING: Final = (
    "not supported: the content of requests is not logged; leave it out (--access-log writes a line for each request, without content)"
)
_REJECTED: Final = {"logging_config": _LOGGING}
#: The field's number in a message of the RPC that changes the list.
_LOGGING_NUMBER: Final = 6
_SPLITTING: Final = "enable_large_batch_splitting"
_WORDS: Final = {word: word in ("true", "True", "t", "1") for word in ("true", "True", "t", "1", "false", "False", "f", "0")}


class Batching(NamedTuple):
    """The contents of a batching parameters file: the settings for models, and the fields without effect."""

    defaults: BatchingDefaults
    remarks: tuple[str, ...]


def read_model_list(text: str, *, source: str, folder: Path) -> tuple[ListedModel, ...]:
    """The models of a ModelServerConfig.

    Args:
        text: The file's content.
        source: Short name of the file for messages.
        folder: Where a base_path that is not absolute begins.

    Raises:
        ConfigError: anything wrong with it; names all that was found.
    """
    lines: dict[str, int | None] = {}
    message = model_server_config_pb2.ModelServerConfig()
    report = _bound(parse_tree(text, source=source), source, message, lines)
    models = list_of(message, report, folder)
    report.raise_if_any()
    return models


def list_of(message: model_server_config_pb2.ModelServerConfig, report: Report, folder: Path | None) -> tuple[ListedModel, ...]:
    """The models of `message`; adds every problem to `report`. `folder` None: every base_path must be absolute."""
    if not message.HasField("model_config_list"):
        report.error("model_config_list", "must be written: the list of models")
    configs = message.model_config_list.config
    if len(configs) > _MAX_MODELS:
        report.error("model_config_list.config", f"{len(configs)} models; at most {_MAX_MODELS}")
        return ()
    models: dict[str, ListedModel] = {}
    for index, config in enumerate(configs):
        at = f"model_config_list.config[{index}]"
        base_path = Path(config.base_path)
        unknown = UnknownFieldSet(config)
        if any(unknown[index].field_number == _LOGGING_NUMBER for index in range(len(unknown))):
            report.error(f"{at}.logging_config", _LOGGING)
        if not config.name:
            report.error(f"{at}.name", "must be written")
        elif config.name in models:
            report.error(f"{at}.name", f"Illegal to list model {config.name[:128]} multiple times in config list")
        if not config.base_path or "\0" in config.base_path:
            report.error(f"{at}.base_path", "must be written: the folder with the version folders")
        elif "://" in config.base_path:
            report.error(f"{at}.base_path", "a folder of this host is expected: models are not fetched from elsewhere")
        elif not base_path.is_absolute() and folder is None:
            report.error(f"{at}.base_path", f"Expected model {config.name[:128]} to have an absolute path")
        for label, version in config.version_labels.items():
            if not label or version < 1:
                report.error(map_path(f"{at}.version_labels", label), "takes a name and a version from 1 up")
        models[config.name] = ListedModel(
            name=config.name,
            base_path=base_path if folder is None else folder / base_path,
            version_policy=_policy(config, at, report),
            version_labels=dict(config.version_labels),
            platform="" if config.model_platform == _TENSORFLOW else config.model_platform,
        )
    return tuple(models.values())


def read_batching(text: str, *, source: str) -> Batching:
    """The settings of a BatchingParameters file as Stoker's settings.

    Raises:
        ConfigError: anything wrong with it.
    """
    lines: dict[str, int | None] = {}
    message = session_bundle_config_pb2.BatchingParameters()
    tree = parse_tree(text, source=source)
    others = tuple(entry for entry in tree.entries if entry.name != _SPLITTING)
    report = _bound(Block(others, tree.line), source, message, lines)
    remarks: list[str] = []
    splits = False
    for entry in tree.entries:
        if entry.name == _SPLITTING:
            splits = _splitting(entry, report)
    most = _value(message, "max_batch_size", DEFAULT_MAX_BATCH_SIZE, 1, MAX_BATCH_SIZE, report)
    delay_us = _value(message, "batch_timeout_micros", 0, 0, (1 << 53), report)
    enqueued = _value(message, "max_enqueued_batches", 0, 1, 1 << 31, report)
    sizes = tuple(message.allowed_batch_sizes)
    if sizes and (list(sizes) != sorted(set(sizes)) or sizes[0] < 1):
        report.error("allowed_batch_sizes", "the sizes must be above 0 and ascend")
    elif sizes and sizes[-1] != most:
        report.error("allowed_batch_sizes", f"the last size must equal max_batch_size, which is {most}, not {sizes[-1]}")
    elif sizes:
        remarks.append("allowed_batch_sizes: batches of these sizes are preferred; they are not padded to them")
    if message.HasField("num_batch_threads"):
        _value(message, "num_batch_threads", 1, 1, 1 << 31, report)
        remarks.append("num_batch_threads has no effect: a model runs as many batches at once as its config.pbtxt has instances")
    if message.HasField("thread_pool_name"):
        remarks.append("thread_pool_name has no effect: every model has a queue of its own")
    if message.pad_variable_length_inputs:
        remarks.append("pad_variable_length_inputs: sizes are padded to powers of two, with the first element of the input")
    report.raise_if_any()
    defaults = BatchingDefaults(
        max_batch_size=most,
        max_queue_delay_us=delay_us,
        preferred_batch_sizes=sizes,
        max_enqueued_batches=enqueued,
        splits_oversized=splits,
        pads_variable=message.pad_variable_length_inputs,
    )
    return Batching(defaults, tuple(f"{source}: {remark}" for remark in remarks))


def read_monitoring(text: str, *, source: str, path: str) -> str | None:
    """The metrics path of a MonitoringConfig file; None: no metrics. `path` is the default.

    Raises:
        ConfigError: anything wrong with it.
    """
    lines: dict[str, int | None] = {}
    message = monitoring_config_pb2.MonitoringConfig()
    report = _bound(parse_tree(text, source=source), source, message, lines)
    written = message.prometheus_config.path or path
    if not written.startswith("/") or not written.isprintable() or not written.isascii() or any(mark in written for mark in "?# %"):
        report.error("prometheus_config.path", f"takes a path such as {path}, not '{written[:80]}'")
    report.raise_if_any()
    return written if message.prometheus_config.enable else None


class SslTexts(NamedTuple):
    """An SSLConfig file: PEM texts; `client_ca` None: clients show no certificate."""

    cert: str
    key: str
    client_ca: str | None


def read_ssl(text: str, source: str) -> SslTexts:
    """The texts of an SSLConfig file.

    Raises:
        ConfigError: anything wrong with it.
    """
    lines: dict[str, int | None] = {}
    message = ssl_config_pb2.SSLConfig()
    report = _bound(parse_tree(text, source=source), source, message, lines)
    for name in ("server_key", "server_cert"):
        if not getattr(message, name):
            report.error(name, "must be written: the PEM text itself, with \\n between its lines")
    if message.client_verify and not message.custom_ca:
        report.error("custom_ca", "must be written with client_verify: the certificates that sign clients' ones")
    report.raise_if_any()
    return SslTexts(message.server_cert, message.server_key, message.custom_ca if message.client_verify else None)


def _splitting(entry: Entry, report: Report) -> bool:
    """Reads `enable_large_batch_splitting { value: true }`."""
    value = entry.values[0] if len(entry.values) == 1 else None
    if isinstance(value, Block):
        texts = [each.values[0].text for each in value.entries if each.name == "value" and isinstance(each.values[0], Scalar)]
        if len(texts) == len(value.entries) <= 1 and (not texts or texts[0] in _WORDS):
            return _WORDS[texts[0]] if texts else False
    report.error(_SPLITTING, "takes { value: true } or { value: false }", line=entry.line)
    return False


def _bound(tree: Block, source: str, message: Message, lines: dict[str, int | None]) -> Report:
    """Fills `message` from `tree`; raises at once if a field is not one of the message's."""
    report = Report(source, lines, first_line=1)
    parents = field_parents(message.DESCRIPTOR)
    Binder(report, lines, is_json=False, enum_bound=_NO_BOUND, parents=parents, rejections=_REJECTED).fill(tree, message)
    report.raise_if_any()
    return report


def _policy(config: model_server_config_pb2.ModelConfig, at: str, report: Report) -> VersionPolicy | None:
    policy = config.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "latest":
            return LatestVersions(policy.latest.num_versions or 1)
        case "all":
            return AllVersions()
        case "specific":
            if not policy.specific.versions or min(policy.specific.versions) < 1:
                report.error(f"{at}.model_version_policy.specific.versions", "names no version, or one below 1")
            return SpecificVersions(tuple(sorted(set(policy.specific.versions))))
        case _:
            return None


def _value(message: session_bundle_config_pb2.BatchingParameters, name: str, default: int, low: int, high: int, report: Report) -> int:
    """The number in the wrapper message `name`."""
    if not message.HasField(name):
        return default
    value = int(getattr(message, name).value)
    if not low <= value <= high:
        report.error(f"{name}.value", f"takes {low} to {high}, not {value}")
    return value
