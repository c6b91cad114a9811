"""Adlik's four services as a table of methods, taken from their descriptors."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from google.protobuf.message import Message

from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.engine.interface import Engine
from stoker.server.pb.adlik import operate_pb2, predict_pb2
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.rpc.control import ControlMethods, Run
from stoker.server.rpc.method import Failed, Method, inference_method
from stoker.server.rpc.status import adlik_status

_SERVICES = (
    predict_pb2.DESCRIPTOR.services_by_name["PredictService"],
    operate_pb2.DESCRIPTOR.services_by_name["TaskService"],
    operate_pb2.DESCRIPTOR.services_by_name["ModelOperateService"],
    operate_pb2.DESCRIPTOR.services_by_name["ServerStatusService"],
)


def adlik_methods(engine: Engine, limits: Limits, service: AdlikService) -> tuple[Method, ...]:
    """Every method of the four services, answered by `service`."""
    control = ControlMethods(engine, limits, adlik_status)
    failed = partial(engine.note_failed, Via.ADLIK_GRPC)
    return tuple(_method(descriptor, service, control, limits, failed) for each in _SERVICES for descriptor in each.methods)


def _method(descriptor: Any, service: AdlikService, control: ControlMethods, limits: Limits, failed: Failed) -> Method:
    if descriptor.name == "predict":
        return inference_method(descriptor, service.predicting.from_message, adlik_status, limits.grpc_message_bytes, failed)
    runs: dict[str, Callable[[Any], Message | Awaitable[Message]]] = {
        "getModelMeta": service.get_model_meta,
        "create": service.create,
        "serverStatus": service.server_status,
    }
    return control.method(descriptor, _without_call(runs.get(descriptor.name) or partial(service.operations.run, descriptor.name)))


def _without_call(run: Callable[[Any], Message | Awaitable[Message]]) -> Run:
    return lambda request, call: run(request)
