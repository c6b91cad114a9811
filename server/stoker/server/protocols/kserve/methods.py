"""`inference.GRPCInferenceService` as a table of methods, taken from its descriptor."""

import re
from functools import partial
from typing import Any, Final

from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.rpc.control import ControlMethods
from stoker.server.rpc.method import Failed, Method, kind_of, path_of
from stoker.server.rpc.status import kserve_status

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def kserve_methods(engine: Engine, limits: Limits, extensions: Extensions | None = None) -> tuple[Method, ...]:
    """Every method of the service; `extensions` as `KServeService` takes them."""
    service = KServeService(engine, limits, extensions)
    control = ControlMethods(engine, limits, kserve_status)
    failed = partial(engine.note_failed, Via.KSERVE_GRPC)
    return tuple(_method(descriptor, service, control, limits, failed) for descriptor in _SERVICE.methods)


def _method(descriptor: Any, service: KServeService, control: ControlMethods, limits: Limits, failed: Failed) -> Method:
    name, most_bytes = descriptor.name, limits.grpc_message_bytes
    if name == "ModelInfer":
        inference = service.inference
        return Method(
            path=path_of(descriptor),
            kind=kind_of(descriptor),
            start=inference.start,
            lead_bytes=inference.lead_bytes,
            status=kserve_status,
            most_bytes=most_bytes,
            failed=failed,
        )
    if name == "ModelStreamInfer":
        return Method(
            path=path_of(descriptor),
            kind=kind_of(descriptor),
            handle=service.stream_inference.model_stream_infer,
            begin=service.stream_inference.begin,
            lead_bytes=service.inference.lead_bytes,
            status=kserve_status,
            most_bytes=most_bytes,
            failed=failed,
        )
    return control.method(descriptor, getattr(service, _snake(name)), most_bytes if name == "RepositoryModelLoad" else None)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
