"""Prints every enum value, field and method that the given modules' descriptors declare, one a line, sorted.

Run as a script by an interpreter of choice, so that definitions of different packages, which cannot meet in one process, can be compared:

    python list_descriptors.py tritonclient.grpc.model_config_pb2 tritonclient.grpc.service_pb2
"""

import importlib
import sys

from google.protobuf import descriptor_pb2

FIELD = descriptor_pb2.FieldDescriptorProto


def message_lines(message, prefix):
    path = f"{prefix}.{message.name}"
    yield f"message {path}{' map' if message.options.map_entry else ''}"
    for field in message.field:
        kind = field.type_name or FIELD.Type.Name(field.type).removeprefix("TYPE_").lower()
        label = FIELD.Label.Name(field.label).removeprefix("LABEL_").lower()
        oneof = f" oneof {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        yield f"field {path}.{field.name} = {field.number} {label} {kind}{oneof}{' presence' if field.proto3_optional else ''}"
    for nested in message.nested_type:
        yield from message_lines(nested, path)
    for enum in message.enum_type:
        yield from enum_lines(enum, path)


def enum_lines(enum, prefix):
    for value in enum.value:
        yield f"enum {prefix}.{enum.name}.{value.name} = {value.number}"


def file_lines(file):
    for message in file.message_type:
        yield from message_lines(message, file.package)
    for enum in file.enum_type:
        yield from enum_lines(enum, file.package)
    for service in file.service:
        for method in service.method:
            asks = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            responses = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            yield f"rpc {file.package}.{service.name}.{method.name} {asks} -> {responses}"


if __name__ == "__main__":
    lines = set()
    for name in sys.argv[1:]:
        proto = descriptor_pb2.FileDescriptorProto()
        importlib.import_module(name).DESCRIPTOR.CopyToProto(proto)
        lines.update(file_lines(proto))
    print("\n".join(sorted(lines)))
