"""The HTTP routes of the extensions that change settings or memory: shared memory, log settings, trace settings."""

from typing import Any

from fastapi import Request, Response

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.validation import check_model_name
from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.http_codec import message_to_json
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.rpc.restricted import Restrictions
from stoker.server.web import settings_schemas as schemas
from stoker.server.web.endpoint import call_of, json_response, read_object
from stoker.server.web.route_adder import RouteAdder

_UINT64_MAX = (1 << 64) - 1


class SettingsRoutes:
    """Endpoints that read and change what the server has been told. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, service: KServeService, restrictions: Restrictions) -> None:
        """`restrictions` are those of the port."""
        self._restrictions = restrictions
        self._engine = engine
        self._limits = limits
        self._service = service

    def add_to(self, add: RouteAdder) -> None:
        """Adds all of them."""
        for kind, status, regions in (
            ("system", self.system_status, list[schemas.SystemRegion]),
            ("cuda", self.cuda_status, list[schemas.CudaRegion]),
        ):
            root = f"/v2/{kind}sharedmemory"
            shown = "CUDA" if kind == "cuda" else kind
            unregister = self.system_unregister if kind == "system" else self.cuda_unregister
            for path in (root, f"{root}/region/{{region}}"):
                add("shared memory", "GET", f"{path}/status", status, f"Registered {shown} regions", regions)
                add("shared memory", "POST", f"{path}/unregister", unregister, f"Unregister {shown} regions", None)
        register = "/region/{region}/register"
        system, cuda = schemas.RegisterSystemBody, schemas.RegisterCudaBody
        add("shared memory", "POST", f"/v2/systemsharedmemory{register}", self.system_register, "Register a system region", None, system)
        add("shared memory", "POST", f"/v2/cudasharedmemory{register}", self.cuda_register, "Refused: there is no GPU", None, cuda)
        for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting", "/v2/models/{model}/versions/{version}/trace/setting"):
            add("settings", "GET", path, self.trace_setting, "Trace settings", schemas.TraceSettings)
            add("settings", "POST", path, self.trace_setting, "Change trace settings", schemas.TraceSettings, schemas.TraceSettings)
        add("settings", "GET", "/v2/logging", self.log_settings, "Log settings", schemas.LogSettings)
        add("settings", "POST", "/v2/logging", self.log_settings, "Change log settings", schemas.LogSettings, schemas.LogSettings)

    async def system_status(self, request: Request) -> Response:
        message = pb.SystemSharedMemoryStatusRequest(name=_region(request))
        response = await self._service.system_shared_memory_status(message, call_of(request))
        return json_response([message_to_json(region) for region in response.regions.values()])

    async def system_register(self, request: Request) -> Response:
        given = await read_object(request, self._engine, self._limits)
        message = pb.SystemSharedMemoryRegisterRequest(
            name=_region(request),
            key=_text(given, "key"),
            offset=_unsigned(given, "offset"),
            byte_size=_unsigned(given, "byte_size"),
        )
        await self._service.system_shared_memory_register(message, call_of(request))
        return json_response({})

    async def system_unregister(self, request: Request) -> Response:
        message = pb.SystemSharedMemoryUnregisterRequest(name=_region(request))
        await self._service.system_shared_memory_unregister(message, call_of(request))
        return json_response({})

    async def cuda_status(self, request: Request) -> Response:
        await self._service.cuda_shared_memory_status(pb.CudaSharedMemoryStatusRequest(name=_region(request)), call_of(request))
        return json_response([])

    async def cuda_register(self, request: Request) -> Response:
        await self._service.cuda_shared_memory_register(pb.CudaSharedMemoryRegisterRequest(name=_region(request)), call_of(request))
        return json_response({})

    async def cuda_unregister(self, request: Request) -> Response:
        message = pb.CudaSharedMemoryUnregisterRequest(name=_region(request))
        await self._service.cuda_shared_memory_unregister(message, call_of(request))
        return json_response({})

    async def trace_setting(self, request: Request) -> Response:
        model = check_model_name(request.path_params["model"]) if "model" in request.path_params else ""
        given = await read_object(request, self._engine, self._limits) if request.method == "POST" else {}
        changes = {name: _strings(name, value) for name, value in given.items()}
        settings = self._service.change_trace_settings(model, changes, self._restrictions)
        # Over HTTP only the level is a list.
        return json_response({name: values if name == "trace_level" else values[0] for name, values in settings.items()})

    async def log_settings(self, request: Request) -> Response:
        given = await read_object(request, self._engine, self._limits) if request.method == "POST" else {}
        return json_response(self._service.change_log_settings(given, self._restrictions))


def _region(request: Request) -> str:
    return str(request.path_params.get("region", ""))


def _strings(name: str, value: Any) -> list[str] | None:
    """The values of a trace setting: null, a string, or a list of strings."""
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in values):
        raise InvalidRequest(f"'{name[:128]}' must be a string, null, or for 'trace_level' an array of strings")
    return values


def _text(given: dict[str, Any], name: str) -> str:
    # What is left out has the value that it has over gRPC, and is judged in one place.
    value = given.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(f"'{name}' must be a string")
    return value


def _unsigned(given: dict[str, Any], name: str) -> int:
    value = given.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT64_MAX:
        raise InvalidRequest(f"'{name}' must be an unsigned 64-bit integer")
    return value
