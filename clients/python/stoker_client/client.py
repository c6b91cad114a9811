"""`Client`: the synchronous interface of every client. Its dialect and its transport implement the protocol."""

import abc
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from stoker_client.dialect import Call, Dialect, Facts, T, Transport, config_text
from stoker_client.errors import ClientClosed, NotFound
from stoker_client.inference import (
    InferOptions,
    InferRequest,
    InferResult,
    ParameterValue,
    build_request,
    output_names,
    time_limit_s,
    version_text,
)
from stoker_client.retry import Attempts, RetryBudget, RetryPolicy, Timing, send_with_retries
from stoker_client.tensors import TensorLike


class Client(abc.ABC):
    """A connection to one server; made by `connect`, `GrpcClient` or `HttpClient`.

    Every call takes `timeout_s`: seconds for the whole call, retries included; None: the client's default; `math.inf`: no limit.
    Every call raises a `StokerError`; `model_metadata` and similar methods return plain dicts in the protocol's field names, equal for both
    protocols. Connects at the first call. Thread-safe. Close it, or use it in a `with` block.
    """

    def __init__(self, dialect: Dialect, transport: Transport, *, timeout_s: float | None, retry: RetryPolicy, timing: Timing) -> None:
        self._dialect = dialect
        self._transport = transport
        self._timeout_s = timeout_s
        self._retry = retry
        self._timing = timing
        self._budget = RetryBudget(retry.budget)
        self._is_closed = False

    def infer(
        self,
        model: str,
        inputs: Mapping[str, TensorLike],
        *,
        version: int | str | None = None,
        outputs: Iterable[str] | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        priority: int = 0,
        queue_timeout_s: float | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> InferResult:
        """Runs one inference.

        Args:
            model: Model name.
            inputs: Arrays by input name, with the batch dimension where the model has one. Their numpy types choose the wire types; use
                `TypedArray` to state one.
            version: None: the server's choice.
            outputs: Names of the requested outputs; None: all.
            request_id: Echoed in the result.
            timeout_s: See the class.
            priority: 1: highest; 0: the model's default.
            queue_timeout_s: How long the request may wait in the server's queue, seconds; None: the model's default.
            parameters: Further request parameters.

        Returns:
            A dict of arrays by output name; if possible, read-only views of the received message.
        """
        options = InferOptions(
            version=version,
            outputs=output_names(outputs),
            request_id=request_id,
            priority=priority,
            queue_timeout_s=queue_timeout_s,
            parameters=parameters or {},
        )
        return self._run(self._dialect.infer(build_request(model, inputs, options)), timeout_s)

    def stream(
        self,
        model: str,
        inputs: Iterable[Mapping[str, TensorLike]],
        *,
        version: int | str | None = None,
        outputs: Iterable[str] | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        priority: int = 0,
        queue_timeout_s: float | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> Iterator[InferResult]:
        """Sends one request for each item of `inputs` and yields the responses as they come.

        gRPC: one bidirectional stream; requests run concurrently, and a decoupled model may return any number of responses to each. HTTP:
        requests go one after the other, with one response each. The n-th request (from 0) has the id `<request_id><n>`. The first failing
        request ends the stream with its error. There are no retries. Leaving the loop early cancels the requests in progress. `timeout_s`
        bounds the whole stream; None: no limit. The other arguments are those of `infer`.
        """
        options = InferOptions(
            version=version,
            outputs=output_names(outputs),
            priority=priority,
            queue_timeout_s=queue_timeout_s,
            parameters=parameters or {},
        )
        limit_s = time_limit_s(timeout_s, None)
        requests = (build_request(model, item, options, request_id=f"{request_id}{n}") for n, item in enumerate(inputs))
        self._check_open()
        return self._stream(requests, limit_s)

    def is_live(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server is live."""
        return self._run(self._dialect.is_live(), timeout_s)

    def is_ready(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server is ready."""
        return self._run(self._dialect.is_ready(), timeout_s)

    def is_model_ready(self, model: str, version: int | str | None = None, *, timeout_s: float | None = None) -> bool:
        """Whether that version (None: any) is READY; False for an unknown model."""
        try:
            return self._run(self._dialect.is_model_ready(model, version_text(version)), timeout_s)
        except NotFound:
            return False

    def server_metadata(self, *, timeout_s: float | None = None) -> Facts:
        """The server's `name`, `version` and `extensions`."""
        return self._run(self._dialect.server_metadata(), timeout_s)

    def model_metadata(self, model: str, version: int | str | None = None, *, timeout_s: float | None = None) -> Facts:
        """A model's `name`, `versions`, `platform`, and its `inputs` and `outputs` with `name`, `datatype`, `shape`."""
        return self._run(self._dialect.model_metadata(model, version_text(version)), timeout_s)

    def model_config(self, model: str, version: int | str | None = None, *, timeout_s: float | None = None) -> Facts:
        """A model's configuration, completed by the server."""
        return self._run(self._dialect.model_config(model, version_text(version)), timeout_s)

    def index(self, *, ready_only: bool = False, timeout_s: float | None = None) -> list[Facts]:
        """The index of the repository: `name`, `version`, `state`, `reason` of each version."""
        return self._run(self._dialect.index(ready_only=ready_only), timeout_s)

    def statistics(self, model: str | None = None, version: int | str | None = None, *, timeout_s: float | None = None) -> list[Facts]:
        """Counts and times of each version of `model`, or of every model."""
        return self._run(self._dialect.statistics(model or "", version_text(version)), timeout_s)

    def load(
        self,
        model: str,
        *,
        config: Mapping[str, Any] | str | None = None,
        files: Mapping[str, bytes] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Loads or reloads a model; returns when it is ready.

        Args:
            model: Model name.
            config: A model configuration (dict or JSON text) to use instead of the repository's.
            files: File contents by path below the model folder, such as `1/model.onnx`, that replace the repository's files; needs
                `config`.
            timeout_s: See the class; a large model may need more than the default.
        """
        self._run(self._dialect.load(model, config_text(config, files or {}), files or {}), timeout_s)

    def unload(self, model: str, *, unload_dependents: bool = False, timeout_s: float | None = None) -> None:
        """Unloads a model."""
        self._run(self._dialect.unload(model, unload_dependents=unload_dependents), timeout_s)

    def close(self) -> None:
        """Closes every connection; calls in progress end with an error. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abc.abstractmethod
    def _stream(self, requests: Iterator[InferRequest], limit_s: float | None) -> Iterator[InferResult]:
        """Runs a stream over the client's protocol."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed

    def _run(self, call: Call[T], timeout_s: float | None) -> T:
        self._check_open()
        limit_s = time_limit_s(timeout_s, self._timeout_s)
        attempts = Attempts(self._retry, self._budget, self._timing, is_read=call.is_read, timeout_s=limit_s)
        return send_with_retries(lambda left_s: call.parse(self._transport.send(call.request, left_s)), attempts, self._timing)
