"""Restricted APIs: categories of RPCs and routes, the key that each requires, and the check in front of a method."""

import dataclasses
import enum
import functools
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stoker.backends.api.errors import RestrictedCall, Unauthenticated
from stoker.server.core.completion import Completion
from stoker.server.rpc.method import Call, Method, ReactorCall, Result, StreamCall, StreamReactor


class Category(enum.StrEnum):
    """The categories of restricted APIs, by Triton's names."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


@dataclass(frozen=True, slots=True)
class Key:
    """The key that a call must have.

    Attributes:
        header: Name of the header, or of the metadata, in lower case.
        value: Its value.
    """

    header: str
    value: str = field(repr=False)


class Restrictions:
    """The keys of one port's categories. Immutable; each object has a random salt."""

    def __init__(self, keys: Mapping[Category, Key] | None = None, *, what: str = "API", api_key: str | None = None) -> None:
        """Requires a key for each category in `keys`, and `api_key` for all calls except health.

        Args:
            keys: The key of each restricted category.
            what: Triton's word for a category in error texts: API over HTTP, protocol over gRPC.
            api_key: The bearer token; None: no call needs one.
        """
        self._salt = secrets.token_bytes(32)
        self._what = what
        self._keys = {category: (key.header, self._digest(key.value)) for category, key in (keys or {}).items()}
        self._api_key = None if api_key is None else self._digest(api_key)

    @property
    def needs_api_key(self) -> bool:
        """Whether all calls except health require an API key."""
        return self._api_key is not None

    def restricts(self, category: Category | None) -> bool:
        """Whether calls of that category require a key. None: routes without a category, such as the documentation pages."""
        return category in self._keys or (self._api_key is not None and category is not Category.HEALTH)

    def require(self, category: Category | None, header: Callable[[str], str | None]) -> None:
        """Checks the keys of a call; `header` returns the value of a header by its name.

        Raises:
            Unauthenticated: the API key is missing or wrong.
            RestrictedCall: the key of the restricted category is missing or wrong.
        """
        if self._api_key is not None and category is not Category.HEALTH:
            self._authenticate(self._api_key, header("authorization"))
        if category is None or category not in self._keys:
            return
        name, expected = self._keys[category]
        if not self._matches(header(name) or "", expected):
            raise RestrictedCall(f"This {self._what} is restricted, expecting header '{name}'")

    def _authenticate(self, expected: bytes, authorization: str | None) -> None:
        if authorization is None:
            raise Unauthenticated("this server requires an API key: send it as 'Authorization: Bearer KEY'")
        scheme, _, token = authorization.partition(" ")
        # RFC 9110, 11.1: the name of a scheme is case-insensitive.
        if scheme.lower() != "bearer":
            raise Unauthenticated("the header 'Authorization' is of another scheme: this server expects 'Authorization: Bearer KEY'")
        if not self._matches(token.strip(" "), expected):
            raise Unauthenticated("the API key in the header 'Authorization' is not the key of this server")

    def _matches(self, given: str, expected: bytes) -> bool:
        """Compares salted digests in constant time, so that the duration reveals nothing about the key."""
        return hmac.compare_digest(self._digest(given), expected)

    def _digest(self, value: str) -> bytes:
        return hashlib.blake2b(value.encode(errors="surrogateescape"), key=self._salt).digest()


NO_RESTRICTIONS: Final = Restrictions()

#: Metadata names of gRPC keys begin with it.
GRPC_KEY_PREFIX: Final = "triton-grpc-protocol-"

_KSERVE: Final = "/inference.GRPCInferenceService/"
_SERVING: Final = "/tensorflow.serving."
_ADLIK: Final = "/adlik.serving."
_METHODS: Final[dict[str, Category]] = {
    f"{_KSERVE}ServerLive": Category.HEALTH,
    f"{_KSERVE}ServerReady": Category.HEALTH,
    f"{_KSERVE}ModelReady": Category.HEALTH,
    f"{_KSERVE}ServerMetadata": Category.METADATA,
    f"{_KSERVE}ModelMetadata": Category.METADATA,
    f"{_KSERVE}ModelInfer": Category.INFERENCE,
    f"{_KSERVE}ModelStreamInfer": Category.INFERENCE,
    f"{_KSERVE}ModelConfig": Category.MODEL_CONFIG,
    f"{_KSERVE}ModelStatistics": Category.STATISTICS,
    f"{_KSERVE}RepositoryIndex": Category.MODEL_REPOSITORY,
    f"{_KSERVE}RepositoryModelLoad": Category.MODEL_REPOSITORY,
    f"{_KSERVE}RepositoryModelUnload": Category.MODEL_REPOSITORY,
    f"{_KSERVE}SystemSharedMemoryStatus": Category.SHARED_MEMORY,
    f"{_KSERVE}SystemSharedMemoryRegister": Category.SHARED_MEMORY,
    f"{_KSERVE}SystemSharedMemoryUnregister": Category.SHARED_MEMORY,
    f"{_KSERVE}CudaSharedMemoryStatus": Category.SHARED_MEMORY,
    f"{_KSERVE}CudaSharedMemoryRegister": Category.SHARED_MEMORY,
    f"{_KSERVE}CudaSharedMemoryUnregister": Category.SHARED_MEMORY,
    f"{_KSERVE}TraceSetting": Category.TRACE,
    f"{_KSERVE}LogSettings": Category.LOGGING,
    "/grpc.health.v1.Health/Check": Category.HEALTH,
    "/grpc.health.v1.Health/Watch": Category.HEALTH,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Category.METADATA,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Category.METADATA,
    f"{_SERVING}PredictionService/Predict": Category.INFERENCE,
    f"{_SERVING}PredictionService/Classify": Category.INFERENCE,
    f"{_SERVING}PredictionService/Regress": Category.INFERENCE,
    f"{_SERVING}PredictionService/MultiInference": Category.INFERENCE,
    f"{_SERVING}PredictionService/GetModelMetadata": Category.METADATA,
    f"{_SERVING}SessionService/SessionRun": Category.INFERENCE,
    f"{_SERVING}ModelService/GetModelStatus": Category.HEALTH,
    f"{_SERVING}ModelService/HandleReloadConfigRequest": Category.MODEL_REPOSITORY,
    f"{_ADLIK}PredictService/predict": Category.INFERENCE,
    f"{_ADLIK}PredictService/getModelMeta": Category.METADATA,
    f"{_ADLIK}TaskService/create": Category.INFERENCE,
    f"{_ADLIK}ModelOperateService/addModel": Category.MODEL_REPOSITORY,
    f"{_ADLIK}ModelOperateService/addModelVersion": Category.MODEL_REPOSITORY,
    f"{_ADLIK}ModelOperateService/deleteModel": Category.MODEL_REPOSITORY,
    f"{_ADLIK}ModelOperateService/deleteModelVersion": Category.MODEL_REPOSITORY,
    f"{_ADLIK}ModelOperateService/activateModel": Category.MODEL_REPOSITORY,
    f"{_ADLIK}ModelOperateService/queryModel": Category.MODEL_REPOSITORY,
    f"{_ADLIK}ServerStatusService/serverStatus": Category.HEALTH,
}


def category_of_method(path: str) -> Category:
    """The category of an RPC, by its path.

    Raises:
        LookupError: the method has no category. Add it to `_METHODS`.
    """
    if path not in _METHODS:
        raise LookupError(f"the RPC {path} has no category of restricted APIs: add it to _METHODS in {__name__}")
    return _METHODS[path]


#: Categories by the path of a route, without its parts for model, version or region. Documentation (/docs, /openapi.json) has no category:
#: only an API key guards it.
_ROUTES: Final[dict[str, Category]] = {
    "/v2": Category.METADATA,
    "/v2/health/live": Category.HEALTH,
    "/v2/health/ready": Category.HEALTH,
    "/v2/models/stats": Category.STATISTICS,
    "/v2/models/{model}": Category.METADATA,
    "/v2/models/{model}/openapi.json": Category.METADATA,
    "/models": Category.MODEL_REPOSITORY,
    "/models/{model}": Category.METADATA,
    "/v2/models/{model}/ready": Category.HEALTH,
    "/v2/models/{model}/config": Category.MODEL_CONFIG,
    "/v2/models/{model}/stats": Category.STATISTICS,
    "/v2/models/{model}/infer": Category.INFERENCE,
    "/v2/models/{model}/generate": Category.INFERENCE,
    "/v2/models/{model}/generate_stream": Category.INFERENCE,
    "/v2/models/{model}/trace/setting": Category.TRACE,
    "/v2/trace/setting": Category.TRACE,
    "/v2/logging": Category.LOGGING,
    "/v2/repository/index": Category.MODEL_REPOSITORY,
    "/v2/repository/models/{model}/load": Category.MODEL_REPOSITORY,
    "/v2/repository/models/{model}/unload": Category.MODEL_REPOSITORY,
    "/v2/systemsharedmemory/status": Category.SHARED_MEMORY,
    "/v2/systemsharedmemory/unregister": Category.SHARED_MEMORY,
    "/v2/systemsharedmemory/register": Category.SHARED_MEMORY,
    "/v2/cudasharedmemory/status": Category.SHARED_MEMORY,
    "/v2/cudasharedmemory/unregister": Category.SHARED_MEMORY,
    "/v2/cudasharedmemory/register": Category.SHARED_MEMORY,
    "/ui/api/events": Category.MODEL_REPOSITORY,
    "/ui/api/models/{model}": Category.METADATA,
    "/ui/api/models/{model}/calls": Category.METADATA,
    "/metrics": Category.STATISTICS,
    "/monitoring/prometheus/metrics": Category.STATISTICS,
}
#: Routes that belong to two categories and require the keys of both. The page of all models shows the repository index, and links to
#: metadata; the console shows the index with the load, and a model's metadata with its configuration.
_ALSO: Final[dict[str, Category]] = {
    "/models": Category.METADATA,
    "/ui/api/events": Category.STATISTICS,
    "/ui/api/models/{model}": Category.MODEL_CONFIG,
}
#: Parts of a path that select a model, a version or a region, and do not change the category.
_NARROWING: Final = ("/versions/{version}", "/{repository}", "/region/{region}")


def categories_of_route(path: str) -> tuple[Category, ...]:
    """The categories of an HTTP route by its declared path; the route requires the key of each.

    Raises:
        LookupError: the route has no category. Add it to `_ROUTES`.
    """
    if path.startswith("/v1/"):
        return (category_below_v1(path),)
    for part in _NARROWING:
        path = path.replace(part, "")
    path = path.removesuffix("/")
    if path not in _ROUTES:
        raise LookupError(f"the route {path} has no category of restricted APIs: add it to _ROUTES in {__name__}")
    return (_ROUTES[path], _ALSO[path]) if path in _ALSO else (_ROUTES[path],)


_OPENAI_ENDPOINTS: Final = frozenset({"embeddings", "completions"})


def category_below_v1(path: str) -> Category:
    """The category of a path below /v1 as sent: verbs of Adlik and TensorFlow Serving are inference, and so are OpenAI's endpoints."""
    *_, last = path.rstrip("/").lower().split("/")
    if ":" in last or last in _OPENAI_ENDPOINTS:
        return Category.INFERENCE
    return Category.METADATA if last in ("metadata", "models") else Category.HEALTH


#: The categories that a connection in a reserved slot may call.
RESERVED_CATEGORIES: Final = frozenset((Category.HEALTH, Category.STATISTICS, Category.MODEL_REPOSITORY, Category.LOGGING, Category.TRACE))


def is_reserved_method(path: str) -> bool:
    """Whether a connection in a reserved slot may call an RPC."""
    try:
        return category_of_method(path) in RESERVED_CATEGORIES
    except LookupError:
        return False


def restricted(methods: Iterable[Method], restrictions: Restrictions) -> Iterator[Method]:
    """Adds a key check to the methods of restricted categories; the others are returned unchanged.

    Raises:
        LookupError: a method has no category.
    """
    for method in methods:
        category = category_of_method(method.path)
        yield _guarded(method, category, restrictions) if restrictions.restricts(category) else method


def _guarded(method: Method, category: Category, restrictions: Restrictions) -> Method:
    """Returns `method` with a key check before its handler."""
    require = functools.partial(restrictions.require, category)
    start, handle, begin = method.start, method.handle, method.begin
    if start is not None:

        def start_checked(data: Any, call: Call) -> Completion[Result]:
            require(call.metadata.get)
            return start(data, call)

        return dataclasses.replace(method, start=start_checked, require=require)

    async def handle_checked(call: StreamCall) -> None:
        require(call.metadata.get)
        assert handle is not None
        await handle(call)

    if begin is None:
        return dataclasses.replace(method, handle=handle_checked, require=require)

    def begin_checked(call: ReactorCall) -> StreamReactor:
        require(call.metadata.get)
        return begin(call)

    return dataclasses.replace(method, handle=handle_checked, begin=begin_checked, require=require)
