"""gRPC server reflection, v1 and v1alpha, which tools such as grpcurl use to find methods and message types.

The messages of both versions differ only in the package name, which is not on the wire, so that one handler serves both. grpcio-reflection
contains only the file descriptor of v1alpha; that of v1 is derived from it.
"""

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2

from stoker.server.core.limits import Limits
from stoker.server.rpc.control import parse_control
from stoker.server.rpc.method import Kind, Method, StreamCall
from stoker.server.rpc.status import INVALID_ARGUMENT, NOT_FOUND, kserve_status

_ALPHA = "grpc.reflection.v1alpha"
_FINAL = "grpc.reflection.v1"
_SERVICE = "ServerReflection"
#: Full names of the services.
SERVICES = (f"{_FINAL}.{_SERVICE}", f"{_ALPHA}.{_SERVICE}")


class Reflection:
    """Serves descriptors from protobuf's default pool, where every served message is registered. Confined to: the event loop."""

    def __init__(self, services: Iterable[str], limits: Limits) -> None:
        """Lists `services` and the reflection services."""
        self._services = sorted({*services, *SERVICES})
        self._limits = limits
        self._pools = (descriptor_pool.Default(), _pool_of_v1())
        self._handlers: dict[str, Callable[[Any], reflection_pb2.ServerReflectionResponse]] = {
            "file_by_filename": lambda name: self._file(lambda pool: pool.FindFileByName(name)),
            "file_containing_symbol": lambda name: self._file(lambda pool: pool.FindFileContainingSymbol(name)),
            "file_containing_extension": self._extension,
            "all_extension_numbers_of_type": self._extension_numbers,
            "list_services": self._list,
        }

    def methods(self) -> tuple[Method, ...]:
        """ServerReflectionInfo of both versions."""
        return tuple(
            Method(
                path=f"/{service}/ServerReflectionInfo",
                kind=Kind.BIDI,
                handle=self._info,
                status=kserve_status,
                most_bytes=self._limits.control_bytes,
            )
            for service in SERVICES
        )

    async def _info(self, call: StreamCall) -> None:
        while (data := await call.receive()) is not None:
            request = parse_control(data, reflection_pb2.ServerReflectionRequest, self._limits, self._limits.control_bytes)
            response = self._respond(request)
            response.valid_host = request.host
            response.original_request.CopyFrom(request)
            await call.send(response)

    def _respond(self, request: reflection_pb2.ServerReflectionRequest) -> reflection_pb2.ServerReflectionResponse:
        kind = request.WhichOneof("message_request")
        if kind is None:
            return _failure(INVALID_ARGUMENT, "the request asks for nothing: set one of message_request")
        try:
            return self._handlers[kind](getattr(request, kind))
        except KeyError:
            return _failure(NOT_FOUND, f"{kind}: not found")

    def _file(self, find: Callable[[Any], Any]) -> reflection_pb2.ServerReflectionResponse:
        """The file descriptor that `find` returns from the first pool that has it, and the files that it imports."""
        files: dict[str, Any] = {}
        waiting = [self._first(find)]
        while waiting:
            file = waiting.pop()
            if file.name not in files:
                files[file.name] = file
                waiting.extend(file.dependencies)
        reply = reflection_pb2.ServerReflectionResponse()
        reply.file_descriptor_response.file_descriptor_proto.extend(file.serialized_pb for file in files.values())
        return reply

    def _first(self, find: Callable[[Any], Any]) -> Any:
        for pool in self._pools[:-1]:
            try:
                return find(pool)
            except KeyError:
                continue
        return find(self._pools[-1])

    def _extension(self, extension: Any) -> reflection_pb2.ServerReflectionResponse:
        def find(pool: Any) -> Any:
            return pool.FindExtensionByNumber(pool.FindMessageTypeByName(extension.containing_type), extension.extension_number).file

        return self._file(find)

    def _extension_numbers(self, name: str) -> reflection_pb2.ServerReflectionResponse:
        pool = self._pools[0]
        message = pool.FindMessageTypeByName(name)
        reply = reflection_pb2.ServerReflectionResponse()
        reply.all_extension_numbers_response.base_type_name = message.full_name
        reply.all_extension_numbers_response.extension_number.extend(sorted(each.number for each in pool.FindAllExtensions(message)))
        return reply

    def _list(self, _value: str) -> reflection_pb2.ServerReflectionResponse:
        reply = reflection_pb2.ServerReflectionResponse()
        for name in self._services:
            reply.list_services_response.service.add(name=name)
        return reply


def _failure(code: int, text: str) -> reflection_pb2.ServerReflectionResponse:
    return reflection_pb2.ServerReflectionResponse(error_response=reflection_pb2.ErrorResponse(error_code=code, error_message=text))


def _pool_of_v1() -> descriptor_pool.DescriptorPool:
    """A descriptor pool with v1's file only: v1alpha's, renamed."""
    file = descriptor_pb2.FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = _FINAL
    typed = [field for message in file.message_type for field in message.field if field.type_name]
    for field in typed:
        field.type_name = field.type_name.replace(f".{_ALPHA}.", f".{_FINAL}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{_ALPHA}.", f".{_FINAL}.")
            method.output_type = method.output_type.replace(f".{_ALPHA}.", f".{_FINAL}.")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool
