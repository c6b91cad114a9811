"""config.pbtxt to `ParsedConfig`: the text's tree, bound to the schema of both dialects, translated into Triton's form, checked."""

from collections.abc import Mapping

from stoker.server.config.binding import Binder
from stoker.server.config.checks import check_config
from stoker.server.config.dialect import ADLIK_NUMBERS, AdlikForm, new_message, to_triton
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import Report
from stoker.server.config.suggestions import field_homes
from stoker.server.config.syntax import Block, parse_tree
from stoker.server.config.unsupported import check_unsupported
from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy
from stoker.server.pb import model_config_pb2 as pb


def parse_pbtxt(text: str, *, source: str, model_name: str, is_named_elsewhere: bool = False) -> ParsedConfig:
    """Reads a config.pbtxt in Triton's or Adlik's form.

    Args:
        text: The file's content.
        source: Short name of the file for messages, such as `digits/config.pbtxt`.
        model_name: The model folder's name, which `name` must repeat if it is written.
        is_named_elsewhere: `model_name` is the operator's choice, and what the file calls the model does not count.

    Raises:
        ConfigError: anything unknown, contradictory, out of range or not supported by this server; names all that was found.
    """
    tree = parse_tree(text, source=source)
    return read_tree(tree, source=source, model_name=model_name, first_line=1, is_named_elsewhere=is_named_elsewhere)


def empty_config(model_name: str) -> ParsedConfig:
    """The configuration of a model that comes without config.pbtxt: everything is left to the model file."""
    return ParsedConfig(
        name=model_name,
        version_policy=LatestVersions(),
        backend="",
        platform="",
        message=pb.ModelConfig(name=model_name),
        source=f"{model_name} (no config.pbtxt)",
    )


def read_tree(tree: Block, *, source: str, model_name: str, first_line: int | None, is_named_elsewhere: bool = False) -> ParsedConfig:
    """The configuration that `tree` holds; `first_line` None: it comes from JSON, and nothing has a line.

    Raises:
        ConfigError: as `parse_pbtxt`.
    """
    lines: dict[str, int | None] = {}
    report = Report(source, lines, first_line=first_line)
    extended = new_message()
    homes = field_homes(extended.DESCRIPTOR)
    binder = Binder(report, lines, is_json=first_line is None, enum_bound=ADLIK_NUMBERS, homes=homes)
    binder.fill(tree, extended)
    report.raise_if_any()
    message, form = to_triton(extended, binder.numeric_enums, report)
    if "name" not in lines or is_named_elsewhere:
        message.name = model_name
    check_config(message, model_name, report)
    check_unsupported(message, report)
    report.raise_if_any()
    return _parsed(message, form, report, lines, source, first_line)


def _parsed(
    message: pb.ModelConfig, form: AdlikForm, report: Report, lines: Mapping[str, int | None], source: str, first_line: int | None
) -> ParsedConfig:
    return ParsedConfig(
        name=message.name,
        version_policy=NoVersions() if form.serves_nothing else _version_policy(message.version_policy),
        backend=message.backend,
        platform=message.platform,
        remarks=tuple(report.warnings),
        is_adlik=form.is_adlik,
        max_enqueued_batches=form.max_enqueued_batches,
        message=message,
        source=source,
        lines=lines,
        first_line=first_line,
    )


def _version_policy(policy: pb.ModelVersionPolicy) -> VersionPolicy:
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return AllVersions()
    if choice == "specific":
        return SpecificVersions(tuple(sorted(set(policy.specific.versions))))
    return LatestVersions(policy.latest.num_versions if choice == "latest" else 1)
