"""`inference.GRPCInferenceService` as a table of methods, taken from its descriptor."""

import re
from collections.abc import Awaitable
from functools import partial
from typing import Any

from google.protobuf.message import Message

from stoker.server.codecs.tensor_bytes import Raw
from stoker.server.core.limits import Limits
from stoker.server.core.request import InFlight, Via
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.in_flight import ResultCallback
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.rpc.call import Call
from stoker.server.rpc.control import ControlMethods
from stoker.server.rpc.method import Failed, LargeMessages, Method, kind_of, path_of
from stoker.server.rpc.status import kserve_status

_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def kserve_methods(engine: Engine, limits: Limits, extensions: Extensions | None = None) -> tuple[Method, ...]:
    """Every method of the service; `extensions` as `KServeService` takes them."""
    service = KServeService(engine, limits, extensions)
    control = ControlMethods(engine, limits, kserve_status)
    failed = partial(engine.note_failed, Via.KSERVE_GRPC)
    return tuple(_method(descriptor, service, control, limits, failed) for descriptor in _SERVICE.methods)


def _method(descriptor: Any, service: KServeService, control: ControlMethods, limits: Limits, failed: Failed) -> Method:
    name, most_bytes = descriptor.name, limits.grpc_message_bytes
    if name == "ModelInfer":
        # No coroutine of its own: it decides what a small request costs.
        model_infer, submit, headers = service.inference.model_infer, service.inference.submit, service.headers

        def infer(data: bytes, call: Call) -> Awaitable[bytes | Message]:
            return model_infer(data, call.deadline_ns)

        def infer_with_metadata(data: bytes, call: Call) -> Awaitable[bytes | Message]:
            return model_infer(data, call.deadline_ns, headers.read(call.metadata))

        def begin(data: Raw, call: Call, on_result: ResultCallback) -> InFlight:
            return submit(data, call.deadline_ns, on_result)

        def begin_with_metadata(data: Raw, call: Call, on_result: ResultCallback) -> InFlight:
            return submit(data, call.deadline_ns, on_result, headers.read(call.metadata))

        return Method(
            path=path_of(descriptor),
            kind=kind_of(descriptor),
            handle=infer_with_metadata if headers.is_on else infer,
            submit=begin_with_metadata if headers.is_on else begin,
            large=LargeMessages(begin_with_metadata if headers.is_on else begin, service.inference.lead_bytes),
            status=kserve_status,
            most_bytes=most_bytes,
            failed=failed,
            starts_inline=True,
        )
    if name == "ModelStreamInfer":
        return Method(
            path=path_of(descriptor),
            kind=kind_of(descriptor),
            handle=service.stream_inference.model_stream_infer,
            status=kserve_status,
            most_bytes=most_bytes,
            failed=failed,
        )
    return control.method(descriptor, getattr(service, _snake(name)), most_bytes if name == "RepositoryModelLoad" else None)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
