"""Server reflection, without a transport."""

import asyncio
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.rpc.reflection import SERVICES, Reflection
from tests.fakes.fake_rpc import FakeStreamCall

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name


def ask(**request: Any) -> Any:
    (method, _) = Reflection([SERVICE], Limits()).methods()
    call = FakeStreamCall(reflection_pb2.ServerReflectionRequest(host="here", **request).SerializeToString())
    assert method.handle is not None
    asyncio.run(method.handle(call))  # type: ignore[arg-type]
    (answer,) = call.sent
    response = reflection_pb2.ServerReflectionResponse.FromString(answer)
    assert (response.valid_host, response.original_request.host) == ("here", "here")
    return response


def files(response: Any) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    found = [descriptor_pb2.FileDescriptorProto.FromString(each) for each in response.file_descriptor_response.file_descriptor_proto]
    return {file.name: file for file in found}


def test_both_versions_are_served_and_listed():
    assert [m.path for m in Reflection([], Limits()).methods()] == [f"/{service}/ServerReflectionInfo" for service in SERVICES]
    listed = {service.name for service in ask(list_services="").list_services_response.service}
    assert listed == {SERVICE, *SERVICES}


def test_symbol_returns_its_file_and_all_its_imports():
    found = files(ask(file_containing_symbol=SERVICE))
    assert {"GRPCInferenceService"} == {service.name for service in found["grpc_service.proto"].service}
    assert set(found["grpc_service.proto"].dependency) <= set(found)


@pytest.mark.parametrize("service", SERVICES)
def test_reflection_describes_itself_in_both_versions(service: str):
    (file,) = files(ask(file_containing_symbol=service)).values()
    (method,) = file.service[0].method
    package = service.rpartition(".")[0]
    assert (file.package, method.input_type) == (package, f".{package}.ServerReflectionRequest")
    assert file.name in files(ask(file_by_filename=file.name))


def test_unknown_symbol_is_not_found_and_the_stream_continues():
    for request in ({"file_by_filename": "no.proto"}, {"file_containing_symbol": "no.Such"}, {"all_extension_numbers_of_type": "no.Such"}):
        assert ask(**request).error_response.error_code == 5
    assert ask(file_containing_extension={"containing_type": SERVICE, "extension_number": 7}).error_response.error_code == 5
    assert ask().error_response.error_code == 3


def test_extension_numbers_of_a_message_are_listed():
    answer = ask(all_extension_numbers_of_type="google.protobuf.FieldOptions").all_extension_numbers_response
    assert answer.base_type_name == "google.protobuf.FieldOptions"
