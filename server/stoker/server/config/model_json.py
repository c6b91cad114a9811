"""A configuration in Triton's JSON form, for models that read it: written from a message, and read back after the model completed it."""

import json
from dataclasses import replace
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from stoker.server.config.checks import check_config, check_unsupported
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import Report
from stoker.server.pb import model_config_pb2 as pb

_LONG = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_FIXED64)


def to_model_json(message: pb.ModelConfig) -> str:
    """`message` as Triton gives it to models: all fields of a present block, 64-bit integers as numbers."""
    made = json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    _write_numbers(made, message.DESCRIPTOR)
    return json.dumps(made)


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


def _write_numbers(made: dict[str, Any], descriptor: Any) -> None:
    """Turns 64-bit integers, which JSON of protobuf has as text, into numbers."""
    for field in descriptor.fields:
        if field.name not in made:
            continue
        value = made[field.name]
        if field.type in _LONG:
            made[field.name] = [int(each) for each in value] if isinstance(value, list) else int(value)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            for each in value.values() if inner is not None else ():
                _write_numbers(each, inner)
        elif field.message_type is not None:
            for each in value if isinstance(value, list) else [value]:
                _write_numbers(each, field.message_type)
