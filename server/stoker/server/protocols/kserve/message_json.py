"""Prints a protobuf message as Triton's HTTP front does: proto field names, defaults of plain fields printed, 64-bit integers as numbers.

protobuf's own JSON printer quotes 64-bit integers. Only answers are printed here; no request is ever read through reflection.
"""

import base64
from typing import Any

from google.protobuf.message import Message


def message_to_json(message: Message) -> dict[str, Any]:
    """The message as JSON values: repeated fields and maps always, plain fields unless in a oneof, messages only where set."""
    printed: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            printed[field.name] = _map(field, value) if _is_map(field) else [_value(field, element) for element in value]
        elif not field.has_presence or message.HasField(field.name):
            printed[field.name] = _value(field, value)
    return printed


# Descriptors are of either protobuf's Python or its C classes, which share no type.
def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _map(field: Any, value: Any) -> dict[str, Any]:
    of = field.message_type.fields_by_name["value"]
    return {str(key): _value(of, value[key]) for key in sorted(value)}


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return message_to_json(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
