"""A configuration in Triton's JSON form, for models that read it: written from a message, and read back after the model completed it."""

import json
from dataclasses import replace

from google.protobuf import json_format

from stoker.server.config.checks import check_config, check_unsupported
from stoker.server.config.message_json import message_to_json
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import Report
from stoker.server.pb import model_config_pb2 as pb


def to_model_json(message: pb.ModelConfig) -> str:
    """`message` as Triton gives it to models: all fields of a present block, 64-bit integers as numbers."""
    return json.dumps(message_to_json(message))


def wire_to_model_json(wire: bytes) -> str:
    """`to_model_json` of a serialised `inference.ModelConfig`."""
    return to_model_json(pb.ModelConfig.FromString(wire))


def described(parsed: ParsedConfig, completed_json: str) -> ParsedConfig:
    """`parsed` with what the model itself completed.

    Args:
        parsed: The configuration as written.
        completed_json: The completed configuration in Triton's JSON form.

    Raises:
        ConfigError: the model changed the name or the version policy, or set a field that does not exist, contradicts another one, or is
            not supported.
    """
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line, warnings=parsed.remarks)
    message = pb.ModelConfig()
    try:
        json_format.Parse(completed_json, message)
    except json_format.ParseError as error:
        report.error("(top level)", f"the model completes its configuration wrongly: {' '.join(str(error).split())[:400]}")
        report.raise_if_any()
    if message.name != parsed.message.name:
        report.error("name", f"the model changes its name to '{message.name}'")
    if message.version_policy != parsed.message.version_policy:
        report.error("version_policy", "the model changes it; only the configuration can set it")
    check_config(message, parsed.name, report)
    check_unsupported(message, report)
    report.raise_if_any()
    return replace(parsed, message=message, is_described=True)
