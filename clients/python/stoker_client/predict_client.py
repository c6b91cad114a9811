"""`PredictClient`: the client of any protocol with predictions; its dialect and its transport implement the protocol."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from stoker_client.dialect import Call, Facts, T, Transport
from stoker_client.errors import InvalidResponse, Unsupported
from stoker_client.inference import InferOptions, InferResult, build_request, output_names, time_limit_s, version_text
from stoker_client.predict_dialect import PredictDialect
from stoker_client.retry import Attempts, RetryBudget, RetryPolicy, Timing, send_with_retries
from stoker_client.tensors import TensorLike


class PredictClient:
    """Metadata and predictions over one protocol. Thread-safe. Close it, or use it in a `with` block.

    `timeout_s` bounds each call, retries included; None: the client's own default, `math.inf`: no limit. Every call raises a `StokerError`.

    Args:
        dialect: The protocol.
        transport: Sends the requests; closed with the client.
        timeout_s: Default time limit of a call in seconds; None: none.
        retry: When and how often failed calls are sent again.
        timing: The clock; for tests.
    """

    def __init__(
        self,
        dialect: PredictDialect,
        transport: Transport,
        *,
        timeout_s: float | None = 60.0,
        retry: RetryPolicy = RetryPolicy(),
        timing: Timing = Timing(),
    ) -> None:
        self._dialect = dialect
        self._transport = transport
        self._timeout_s = timeout_s
        self._retry = retry
        self._timing = timing
        self._budget = RetryBudget(retry.budget)
        self._facts: dict[tuple[str, str], Facts] = {}

    def metadata(self, model: str, version: int | str | None = None, *, timeout_s: float | None = None) -> Facts:
        """A model's `name`, `versions`, and its `inputs` and `outputs` with `name`, `datatype`, `shape`."""
        text = version_text(version)
        *others, last = self._dialect.metadata(model, text)
        for call in others:
            try:
                facts = self._run(call, timeout_s)
                break
            except (InvalidResponse, Unsupported):
                continue
        else:
            facts = self._run(last, timeout_s)
        self._facts[model, text] = facts
        return facts

    def predict(
        self,
        model: str,
        inputs: Mapping[str, TensorLike],
        *,
        version: int | str | None = None,
        outputs: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> InferResult:
        """Runs one inference; reads the model's metadata before the first one.

        Args:
            model: Model name.
            inputs: Arrays by input name, with the batch as first dimension. Their numpy types determine the encoding; `TypedArray` states
                it.
            version: None: the server's choice.
            outputs: Names of the requested outputs; None: all.
            timeout_s: See the class.

        Returns:
            A dict of arrays by output name.
        """
        options = InferOptions(version=version, outputs=output_names(outputs))
        request = build_request(model, inputs, options)
        facts = self._facts.get((model, request.version))
        if facts is None:
            facts = self.metadata(model, version, timeout_s=timeout_s)
        return self._run(self._dialect.infer(request, facts), timeout_s)

    def close(self) -> None:
        """Closes every connection."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self, call: Call[T], timeout_s: float | None) -> T:
        limit_s = time_limit_s(timeout_s, self._timeout_s)
        attempts = Attempts(self._retry, self._budget, self._timing, is_read=call.is_read, timeout_s=limit_s)
        return send_with_retries(lambda left_s: call.parse(self._transport.send(call.request, left_s)), attempts, self._timing)
