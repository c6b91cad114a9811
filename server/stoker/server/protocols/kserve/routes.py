"""The REST routes of KServe v2 with Triton's extensions. They call the same service as gRPC and print its messages as JSON."""

import base64
import binascii
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from stoker.backends.api.errors import InvalidRequest, ServingError
from stoker.server.codecs.validation import check_model_name
from stoker.server.config.message_json import message_to_json
from stoker.server.core.request import Via
from stoker.server.core.tasks import run_off_loop
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.exchange import HttpCall, Receive, Scope, Send
from stoker.server.protocols.kserve import schemas
from stoker.server.protocols.kserve.generate import HttpGenerate
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.protocols.routing import (
    CodecResponse,
    ModelName,
    ModelTarget,
    NoText,
    PathText,
    RouteContext,
    Target,
    UncheckedTarget,
    UncheckedVersionTarget,
    VersionedModelName,
    VersionTarget,
    json_response,
)

_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = "/versions/{version}"
#: Characters of base64 that are decoded at once: a multiple of four, so that every piece is valid alone.
_STEP: Final = 1 << 20
#: Most digits of a version number.
_VERSION_DIGITS: Final = 18
_FAILURES: Final[dict[int | str, dict[str, Any]]] = {"default": {"model": schemas.ErrorResponse, "description": "Failure"}}


class KServeRoutes:
    """The routers of KServe v2. Confined to: the event loop."""

    def __init__(self, context: RouteContext, service: KServeService, infer: HttpInfer, generate: HttpGenerate) -> None:
        self._context = context
        self._service = service
        self._infer = infer
        self._generate = generate

    def routers(self) -> list[APIRouter]:
        """All of them, in the order in which paths are matched."""
        of_models = ((_MODEL, ModelTarget), (_MODEL + _VERSION, VersionTarget))
        repositories = (("/v2/repository", NoText), ("/v2/repository/{repository}", PathText))
        names = (("/v2", NoText), (_MODEL, ModelName), (_MODEL + _VERSION, VersionedModelName))
        return [
            self._metadata_routes(),
            *(self._model_routes(*form) for form in of_models),
            *(self._infer_routes(*form) for form in ((_MODEL, UncheckedTarget), (_MODEL + _VERSION, UncheckedVersionTarget))),
            *(self._generate_routes(*form) for form in of_models),
            *(router for form in repositories for router in self._repository_routes(*form)),
            *(self._shared_memory_routes(*form) for form in (("", NoText), ("/region/{region}", PathText))),
            *(self._trace_routes(*form) for form in names),
            self._log_routes(),
        ]

    def _metadata_routes(self) -> APIRouter:
        router, service = self._context.router(), self._service

        @router.get("/v2", tags=["server"], summary="Server metadata", responses=_FAILURES)
        async def server_metadata(request: Request) -> schemas.ServerMetadata:
            return schemas.ServerMetadata(**message_to_json(await service.server_metadata(pb.ServerMetadataRequest(), _call(request))))

        @router.get("/v2/models/stats", tags=["models"], summary="Statistics of all models", responses=_FAILURES)
        async def all_statistics(request: Request) -> schemas.ModelStatisticsResponse:
            return await self._statistics(Target(""), request)

        return router

    async def _statistics(self, target: Target, request: Request) -> schemas.ModelStatisticsResponse:
        message = pb.ModelStatisticsRequest(name=target.model, version=target.version)
        return schemas.ModelStatisticsResponse(**message_to_json(await self._service.model_statistics(message, _call(request))))

    def _model_routes(self, path: str, ModelOfPath: Any) -> APIRouter:  # noqa: N803 - an annotation
        router, service = self._context.router(), self._service
        add: dict[str, Any] = {"tags": ["models"], "responses": _FAILURES}

        @router.get(path, summary="Model metadata", **add)
        async def model_metadata(target: ModelOfPath, request: Request) -> schemas.ModelMetadata:
            message = pb.ModelMetadataRequest(name=target.model, version=target.version)
            return schemas.ModelMetadata(**message_to_json(await service.model_metadata(message, _call(request))))

        @router.get(f"{path}/ready", summary="Model readiness", **add)
        async def model_ready(target: ModelOfPath, request: Request, response: Response) -> schemas.ModelReady:
            message = pb.ModelReadyRequest(name=target.model, version=target.version)
            is_ready = (await service.model_ready(message, _call(request))).ready
            response.status_code = 200 if is_ready else 400
            return schemas.ModelReady(name=target.model, ready=is_ready)

        @router.get(f"{path}/config", summary="Model configuration", **add)
        async def model_config(target: ModelOfPath, request: Request) -> Response:
            message = pb.ModelConfigRequest(name=target.model, version=target.version)
            return json_response(message_to_json((await service.model_config(message, _call(request))).config))

        @router.get(f"{path}/stats", summary="Model statistics", **add)
        async def model_statistics(target: ModelOfPath, request: Request) -> schemas.ModelStatisticsResponse:
            return await self._statistics(target, request)

        return router

    def _infer_routes(self, path: str, ModelOfPath: Any) -> APIRouter:  # noqa: N803 - an annotation
        router = self._context.router(on_rejected=self._note_rejected)
        body = self._context.codec_body(schemas.InferRequestBody)
        responses = {**_FAILURES, 200: {"model": schemas.InferResponseBody}}

        @router.post(f"{path}/infer", tags=["inference"], summary="Inference", responses=responses, openapi_extra=body)
        async def infer(target: ModelOfPath) -> Response:
            return CodecResponse(partial(self._infer_target, target))

        return router

    async def _infer_target(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        if len(target.version) > _VERSION_DIGITS:
            check_model_name(target.model)
        number = target.number
        try:
            await self._infer.respond(target.model, number, scope, receive, send)
        except ServingError as error:
            self._infer.engine.note_failed(Via.KSERVE_HTTP, error, target.model, number)
            raise

    def _note_rejected(self, path_params: Mapping[str, str], error: ServingError) -> None:
        """Counts a request without its key as a failed one of its model."""
        version = path_params.get("version")
        if version is None or (version.isascii() and version.isdigit() and len(version) <= _VERSION_DIGITS):
            number = None if version is None else int(version)
            self._infer.engine.note_failed(Via.KSERVE_HTTP, error, path_params["model"], number)

    def _generate_routes(self, path: str, ModelOfPath: Any) -> APIRouter:  # noqa: N803 - an annotation
        router, generate = self._context.router(), self._generate
        add: dict[str, Any] = {"tags": ["inference"], "responses": _FAILURES}
        add["openapi_extra"] = self._context.codec_body(schemas.GenerateRequestBody)

        @router.post(f"{path}/generate", summary="Flat JSON in and out", **add)
        async def generate_once(target: ModelOfPath) -> Response:
            return CodecResponse(partial(generate.respond, target.model, target.number))

        @router.post(f"{path}/generate_stream", summary="Flat JSON in, server-sent events out", **add)
        async def generate_stream(target: ModelOfPath) -> Response:
            return CodecResponse(partial(generate.respond_streaming, target.model, target.number))

        return router

    def _repository_routes(self, root: str, RepositoryOfPath: Any) -> list[APIRouter]:  # noqa: N803 - an annotation
        router, loads, service = self._context.router(), self._context.router(reads_large_bodies=True), self._service
        limits = self._context.limits
        add: dict[str, Any] = {"tags": ["repository"], "responses": _FAILURES}

        @router.post(f"{root}/index", summary="Repository index", response_model_exclude_unset=True, **add)
        async def index(
            repository: RepositoryOfPath, given: schemas.IndexRequestBody, request: Request
        ) -> list[schemas.IndexEntryResponse]:
            message = pb.RepositoryIndexRequest(repository_name=repository, ready=given.ready)
            response = await service.repository_index(message, _call(request))
            # A model that was never loaded has no version and no state: they are left out, as in Triton.
            entries = ({key: value for key, value in message_to_json(entry).items() if value} for entry in response.models)
            return [schemas.IndexEntryResponse(**entry) for entry in entries]

        @loads.post(f"{root}/models/{{model}}/load", summary="Load a model", **add)
        async def load(repository: RepositoryOfPath, model: PathText, given: schemas.LoadRequestBody, request: Request) -> dict[str, Any]:
            parameters = given.parameters or {}
            is_long = sum(map(len, parameters.values())) > limits.decode_inline_bytes
            message = await run_off_loop(_load_message, model, parameters) if is_long else _load_message(model, parameters)
            await service.repository_model_load(message, _call(request))
            return {}

        @router.post(f"{root}/models/{{model}}/unload", summary="Unload a model", **add)
        async def unload(
            repository: RepositoryOfPath, model: PathText, given: schemas.UnloadRequestBody, request: Request
        ) -> dict[str, Any]:
            message = pb.RepositoryModelUnloadRequest(model_name=model)
            for key, value in (given.parameters or {}).items():
                message.parameters[key].bool_param = value
            await service.repository_model_unload(message, _call(request))
            return {}

        return [router, loads]

    def _shared_memory_routes(self, path: str, RegionOfPath: Any) -> APIRouter:  # noqa: N803 - an annotation
        router, service = self._context.router(), self._service
        add: dict[str, Any] = {"tags": ["shared memory"], "responses": _FAILURES}
        system, cuda = "/v2/systemsharedmemory" + path, "/v2/cudasharedmemory" + path

        @router.get(f"{system}/status", summary="Registered system regions", **add)
        async def system_status(region: RegionOfPath, request: Request) -> list[schemas.SystemRegion]:
            response = await service.system_shared_memory_status(pb.SystemSharedMemoryStatusRequest(name=region), _call(request))
            return [schemas.SystemRegion(**message_to_json(each)) for each in response.regions.values()]

        @router.post(f"{system}/unregister", summary="Unregister system regions", **add)
        async def system_unregister(region: RegionOfPath, request: Request) -> dict[str, Any]:
            await service.system_shared_memory_unregister(pb.SystemSharedMemoryUnregisterRequest(name=region), _call(request))
            return {}

        @router.get(f"{cuda}/status", summary="Registered CUDA regions", **add)
        async def cuda_status(region: RegionOfPath, request: Request) -> list[schemas.CudaRegion]:
            await service.cuda_shared_memory_status(pb.CudaSharedMemoryStatusRequest(name=region), _call(request))
            return []

        @router.post(f"{cuda}/unregister", summary="Unregister CUDA regions", **add)
        async def cuda_unregister(region: RegionOfPath, request: Request) -> dict[str, Any]:
            await service.cuda_shared_memory_unregister(pb.CudaSharedMemoryUnregisterRequest(name=region), _call(request))
            return {}

        if path:

            @router.post(f"{system}/register", summary="Register a system region", **add)
            async def system_register(region: RegionOfPath, given: schemas.RegisterSystemBody, request: Request) -> dict[str, Any]:
                message = pb.SystemSharedMemoryRegisterRequest(name=region, **given.model_dump())
                await service.system_shared_memory_register(message, _call(request))
                return {}

            @router.post(f"{cuda}/register", summary="Rejected: there is no GPU", **add)
            async def cuda_register(region: RegionOfPath, request: Request) -> dict[str, Any]:
                await service.cuda_shared_memory_register(pb.CudaSharedMemoryRegisterRequest(name=region), _call(request))
                return {}

        return router

    def _trace_routes(self, path: str, NameOfPath: Any) -> APIRouter:  # noqa: N803 - an annotation
        router = self._context.router()
        add: dict[str, Any] = {"tags": ["settings"], "responses": _FAILURES, "response_model_exclude_unset": True}

        def settings(model: str, changes: Mapping[str, list[str] | None]) -> schemas.TraceSettings:
            shown = self._service.change_trace_settings(model, changes, self._context.restrictions)
            # Over HTTP only the level is a list.
            fields: dict[str, Any] = {name: values if name == "trace_level" else values[0] for name, values in shown.items()}
            return schemas.TraceSettings(**fields)

        @router.get(f"{path}/trace/setting", summary="Trace settings", **add)
        async def trace_settings(model: NameOfPath) -> schemas.TraceSettings:
            return settings(model, {})

        @router.post(f"{path}/trace/setting", summary="Change trace settings", **add)
        async def change_trace_settings(model: NameOfPath, given: schemas.TraceChanges) -> schemas.TraceSettings:
            return settings(model, given.root)

        return router

    def _log_routes(self) -> APIRouter:
        router, service, restrictions = self._context.router(), self._service, self._context.restrictions
        add: dict[str, Any] = {"tags": ["settings"], "responses": _FAILURES}

        @router.get("/v2/logging", summary="Log settings", **add)
        async def log_settings() -> schemas.LogSettings:
            return schemas.LogSettings.model_validate(service.change_log_settings({}, restrictions))

        @router.post("/v2/logging", summary="Change log settings", **add)
        async def change_log_settings(given: schemas.LogChanges) -> schemas.LogSettings:
            return schemas.LogSettings.model_validate(service.change_log_settings(given.root, restrictions))

        return router


def _load_message(model: str, parameters: Mapping[str, str]) -> pb.RepositoryModelLoadRequest:
    """The message for a load; `file:` parameters hold base64. Safe in a thread.

    Raises:
        InvalidRequest: a file is not base64.
    """
    message = pb.RepositoryModelLoadRequest(model_name=model)
    for key, value in parameters.items():
        if key.startswith("file:"):
            try:
                message.parameters[key].bytes_param = _decoded(value)
            except (binascii.Error, ValueError):
                raise InvalidRequest(f"load parameter '{key[:128]}' must be base64") from None
        else:
            message.parameters[key].string_param = value
    return message


def _decoded(text: str) -> bytes:
    # In steps, because each holds the GIL; only the last may be padded.
    if text.find("=", 0, (len(text) - 1) // _STEP * _STEP) >= 0:
        raise ValueError("padding before the end")
    return b"".join([base64.b64decode(text[at : at + _STEP], validate=True) for at in range(0, len(text), _STEP)])


def _call(request: Request) -> HttpCall:
    return HttpCall(request.scope["headers"])
