"""`PredictContext`: predictions of one model over Adlik's protocol."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar

from stoker_client._pb import adlik_messages as pb
from stoker_client.adlik.outputs import PredictOutput, read_outputs
from stoker_client.adlik.prediction import InputValue, OutputChoice, build_request, chosen_names, model_spec
from stoker_client.adlik.wire import WIRES
from stoker_client.errors import InvalidRequest, InvalidResponse, InvalidSetting
from stoker_client.inference import time_limit_s
from stoker_client.retry import Attempts, RetryBudget, RetryPolicy, Timing, send_with_retries
from stoker_client.settings import MAX_MESSAGE_BYTES, TlsConfig, make_connection

T = TypeVar("T")


class PredictContext:
    """Runs predictions of one model on a server that speaks Adlik's protocol.

    Arguments, methods and results are those of Adlik's class of this name. The constructor reads the model's configuration from the server,
    so that a wrong address or model fails there. Thread-safe. Close it, or use it in a `with` block.

    Args:
        model_name: The model.
        model_version: A number, a version label, or None for the latest.
        signature: Name of the signature to send; servers of compiled models ignore it.
        url: `host:port`, or an address with its scheme; `grpcs://` and `https://` for TLS.
        protocol: `grpc` or `http`.
        grpc_domain: The name that the server's certificate must have, if it is not that of the address.
        credentials: PEM certificates to trust; enables TLS.
        verbose: Print the time of every `run`, averaged over its iterations.
        timeout_s: Time limit of a call in seconds, retries included; None: no limit, as in Adlik.
        retry: When and how often failed calls are sent again.
        timing: The clock; for tests.
        api_key: Sent as `authorization: Bearer <key>`.

    Raises:
        InvalidSetting: the address or a setting is unusable.
        StokerError: the server does not return the model's configuration.
    """

    def __init__(
        self,
        model_name: str,
        model_version: int | str | None = None,
        signature: str | None = "predict",
        url: str = "localhost:8500",
        protocol: str = "grpc",
        grpc_domain: str | None = None,
        credentials: bytes | None = None,
        verbose: bool = False,
        *,
        timeout_s: float | None = None,
        retry: RetryPolicy = RetryPolicy(),
        timing: Timing = Timing(),
        api_key: str | None = None,
    ) -> None:
        if protocol not in WIRES:
            raise InvalidSetting(f"protocol is {protocol!r}; expected 'grpc' or 'http'")
        self._spec = model_spec(model_name, model_version, signature)
        self._verbose = verbose
        self._timeout_s = timeout_s
        self._retry = retry
        self._timing = timing
        self._budget = RetryBudget(retry.budget)
        if (credentials is not None or grpc_domain is not None) and "://" not in url:
            url = f"{protocol}s://{url}"
        tls = None if credentials is None and grpc_domain is None else TlsConfig(ca=credentials, server_name=grpc_domain)
        connection = make_connection(url, protocol, tls=tls, api_key=api_key, headers=None, max_message_bytes=MAX_MESSAGE_BYTES)
        self._wire = WIRES[protocol](connection)
        try:
            self._config = self._model_config()
        except BaseException:  # the caller is interrupted before it has a context to close
            self._wire.close()
            raise

    @property
    def model_config(self) -> pb.ModelConfigProto:
        """The model's configuration, as read from the server by the constructor."""
        return self._config

    def run(
        self, inputs: Mapping[str, InputValue], outputs: OutputChoice = None, batch_size: int | None = None, iteration: int = 1
    ) -> dict[str, PredictOutput]:
        """Predicts one batch.

        Args:
            inputs: By name, an array, or a list with one value for each sample: the first dimension is the batch. Python numbers are
                converted to the type in the model's configuration.
            outputs: Names of the requested outputs; or, by name, how many of the best classes to return beside the tensor (a number, or
                `{"cls": number}`); None: all.
            batch_size: Number of samples; None: that of the inputs.
            iteration: How often to send the request, one call after the other; the last response is returned.

        Raises:
            StokerError: the request is wrong, or the call failed.
        """
        if iteration < 1:
            raise InvalidRequest(f"iteration is {iteration}; expected at least 1")
        request = self._request(inputs, outputs, batch_size)
        begun_s = self._timing.now_s()
        for _ in range(iteration):
            response = self._call(lambda left_s: self._wire.predict(request, left_s), is_read=False)
        if self._verbose:
            spent_ms = (self._timing.now_s() - begun_s) * 1000 / iteration
            print(f"Run model {self._spec.name} predict (batch size={request.batch_size}) use {spent_ms} ms")  # noqa: T201 - verbose says so
        return self.process_response(outputs, response)

    def async_run(
        self, inputs: Mapping[str, InputValue], outputs: OutputChoice = None, batch_size: int | None = None, iteration: int = 1
    ) -> "Future[pb.PredictResponse]":
        """Starts a prediction and returns at once; `process_response` reads the future's result. There are no retries.

        Args:
            inputs: See `run`.
            outputs: See `run`.
            batch_size: See `run`.
            iteration: Must be 1; for scripts that pass it.

        Raises:
            InvalidRequest: the request is wrong; later errors are raised by the future.
        """
        if iteration != 1:
            raise InvalidRequest(f"iteration is {iteration}; an asynchronous call is sent once")
        return self._wire.submit(self._request(inputs, outputs, batch_size), self._timeout_s)

    def process_response(self, output_names: OutputChoice, response: pb.PredictResponse) -> dict[str, PredictOutput]:
        """The outputs of a response by name, in the requested order.

        Args:
            output_names: As `outputs` of `run`.
            response: The result of `async_run`'s future.

        Raises:
            InvalidResponse: the response is that of another model or version, or lacks an output.
        """
        self._check_model_spec(response.model_spec)
        return read_outputs(chosen_names(output_names), response)

    def close(self) -> None:
        """Closes the connection. May be called again."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _request(self, inputs: Mapping[str, InputValue], outputs: OutputChoice, batch_size: int | None) -> pb.PredictRequest:
        return build_request(self._spec, inputs, outputs, batch_size, self._config)

    def _model_config(self) -> pb.ModelConfigProto:
        meta = self._call(lambda left_s: self._wire.model_meta(self._spec, left_s), is_read=True)
        if meta.config.name and meta.config.name != self._spec.name:
            raise InvalidResponse(f"the server returned the configuration of model '{meta.config.name}', asked for '{self._spec.name}'")
        return meta.config

    def _check_model_spec(self, served: pb.ModelSpec) -> None:
        """Checks that the response repeats the request's model spec or omits it; any other spec belongs to another request's response."""
        if served.name != self._spec.name:
            raise InvalidResponse(f"the server responded for model '{served.name}', asked was '{self._spec.name}'")
        requested = self._spec
        if requested.HasField("version") and served.version.value != requested.version.value:
            raise InvalidResponse(f"the server responded for version {served.version.value}, asked was {requested.version.value}")

    def _call(self, send: Callable[[float | None], T], *, is_read: bool) -> T:
        limit_s = time_limit_s(None, self._timeout_s)
        attempts = Attempts(self._retry, self._budget, self._timing, is_read=is_read, timeout_s=limit_s)
        return send_with_retries(send, attempts, self._timing)
