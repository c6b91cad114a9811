"""Messages as JSON values, as Triton prints them: the fields' own names, enumerators by name, 64-bit integers as numbers."""

import base64
from typing import Any

from google.protobuf.message import Message


def message_to_json(message: Message) -> dict[str, Any]:
    """Converts a message to JSON values: repeated fields and maps always, plain fields unless in a oneof, messages only if set."""
    printed: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            printed[field.name] = _map(field, value) if _is_map(field) else [_value(field, element) for element in value]
        elif not field.has_presence or message.HasField(field.name):
            printed[field.name] = _value(field, value)
    return printed


# protobuf's Python and C descriptor classes have no common type.
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
