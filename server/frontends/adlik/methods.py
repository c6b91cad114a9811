"""Adlik's four services as routes of the gRPC front, taken from their descriptors."""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from backends.api.errors import InvalidRequest, ServingError, TooLarge
from server.engine.interface import Engine
from server.frontends.adlik.service import AdlikService
from server.frontends.grpc_call import deadline_of
from server.frontends.grpc_errors import refuse, refuse_unexpected
from server.frontends.kserve.reservation import Reservation
from server.frontends.kserve.wire import check_control_request
from server.frontends.limits import Limits
from server.frontends.status import adlik_status
from server.pb.adlik import operate_pb2, predict_pb2

_SERVICES = (
    predict_pb2.DESCRIPTOR.services_by_name["PredictService"],
    operate_pb2.DESCRIPTOR.services_by_name["TaskService"],
    operate_pb2.DESCRIPTOR.services_by_name["ModelOperateService"],
    operate_pb2.DESCRIPTOR.services_by_name["ServerStatusService"],
)
#: Full names of the services.
SERVICE_NAMES = tuple(service.full_name for service in _SERVICES)
_Handler = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes | None]]
_Run = Callable[[Any], Message | Awaitable[Message]]


class AdlikRoutes:
    """The handlers of Adlik's services. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, service: AdlikService) -> None:
        self._engine = engine
        self._limits = limits
        self._service = service

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """One handler for each service."""
        return tuple(
            grpc.method_handlers_generic_handler(
                service.full_name,
                {method.name: grpc.unary_unary_rpc_method_handler(self._handler(method), None, None) for method in service.methods},
            )
            for service in _SERVICES
        )

    def _handler(self, method: Any) -> _Handler:
        service = self._service
        if method.name == "predict":
            return self._predict
        runs: dict[str, _Run] = {
            "getModelMeta": service.get_model_meta,
            "create": service.create,
            "serverStatus": service.server_status,
        }
        run = runs.get(method.name) or partial(service.operations.run, method.name)
        return self._control(method.name, run, GetMessageClass(method.input_type))

    async def _predict(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes | None:
        try:
            return await self._service.predicting.from_message(data, deadline_of(context, self._engine))
        except ServingError as error:
            refuse(context, error, adlik_status(error))
        except Exception:  # noqa: BLE001 - the last stop of any defect: logged, answered INTERNAL
            refuse_unexpected(context, "predict")
        return None

    def _control(self, name: str, run: _Run, request: type[Message]) -> _Handler:
        async def handle(data: bytes, context: grpc.aio.ServicerContext) -> bytes | None:
            try:
                with Reservation(self._engine) as reservation:
                    reservation.take(2 * len(data))
                    if len(data) > self._limits.control_bytes:
                        most = self._limits.control_bytes
                        raise TooLarge(f"{request.DESCRIPTOR.name} of {len(data)} bytes exceeds the limit of {most} bytes")
                    check_control_request(data, self._limits)
                    try:
                        message = request.FromString(data)
                    except DecodeError:
                        raise InvalidRequest(f"the request is not a valid {request.DESCRIPTOR.name} message") from None
                    answer = run(message)
                    return (await answer if inspect.isawaitable(answer) else answer).SerializeToString()
            except ServingError as error:
                refuse(context, error, adlik_status(error))
            except Exception:  # noqa: BLE001 - as above
                refuse_unexpected(context, name)
            return None

        return handle
