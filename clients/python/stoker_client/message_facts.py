"""Converts a protobuf message to a plain dict, in the form of the HTTP protocol.

Field names are the protocol's, 64-bit numbers stay int (protobuf's own JSON form makes strings of them), enums are names, scalars are
always present, and messages only where they are set.
"""

import base64
from typing import Any

from google.protobuf.message import Message


def facts_of(message: Message) -> dict[str, Any]:
    """The message's fields by name."""
    facts: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value_field = field.message_type.fields_by_name["value"]
            facts[field.name] = {str(key): _plain(value_field, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            facts[field.name] = [_plain(field, element) for element in value]
        else:
            facts[field.name] = _plain(field, value)
    return facts


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return facts_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return int(value) if known is None else known.name
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
