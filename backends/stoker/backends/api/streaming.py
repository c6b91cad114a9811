"""Models that return any number of responses to a request (Triton: decoupled).

A backend offers it by `Backend.streams` and by instances of `StreamingInstance`. Requests are not batched with others: each is a stream of
its own, and an instance runs up to `pipeline_depth` of them side by side, each in a thread.
"""

import abc
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, cast

from stoker.backends.api.backend import Arrays, Instance, Parameters
from stoker.backends.api.batch import BatchProcessor, BatchResult, Outcome, Share, as_failure
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendFailed, ServingError, Unsupported
from stoker.backends.api.layout import Array, fits, plain, reshaped
from stoker.backends.api.model import ModelSignature

if TYPE_CHECKING:
    from collections.abc import Generator

#: Triton's words, by which clients know the rejection.
DECOUPLED_ONLY = "this endpoint doesn't support models with decoupled transaction policy: use ModelStreamInfer or generate_stream"


class StreamingProcessor(BatchProcessor):
    """Runs requests of a `StreamingInstance`: where the model is decoupled one at a time, each response going to the request's sink."""

    def __init__(self, instance: Instance, signature: ModelSignature, clock: Clock) -> None:
        super().__init__(instance, signature, clock)
        self._streaming = cast("StreamingInstance", instance)

    def run_together(self, items: Sequence[Share], result: BatchResult) -> list[Outcome]:
        if not self._signature.is_decoupled:
            return super().run_together(items, result)
        return [self._respond(item, result) for item in items]

    def _respond(self, item: Share, result: BatchResult) -> Outcome:
        start_ns = self._clock.now_ns()
        try:
            if item.responses is None:
                raise Unsupported(DECOUPLED_ONLY)
            responses = self._streaming.respond(self._taken(item), item.output_names, item.parameters)
            # A generator that is left before its end is closed at once, not at the next collection.
            with closing(cast("Generator[Arrays, None, None]", responses)):
                for outputs in responses:
                    if not item.responses.put(self._given(outputs, item)):
                        break
        except ServingError as error:
            return error
        except BaseException as error:  # noqa: BLE001 - the contract of every backend: whatever it raises becomes this request's failure
            return as_failure(error)
        finally:
            result.infer_ns += self._clock.now_ns() - start_ns
        result.executions.append(item.rows)
        return {}

    def _taken(self, item: Share) -> Arrays:
        """The request's inputs as the model itself takes them."""
        lead = 1 if self._signature.is_batched else 0
        taken: dict[str, Array] = {}
        for spec in self._signature.inputs:
            if spec.name in item.inputs:
                array = item.inputs[spec.name]
                taken[spec.name] = plain(array) if spec.reshape is None else reshaped(array, lead, spec.dims, spec.reshape)
        return taken

    def _given(self, outputs: Arrays, item: Share) -> Arrays:
        """One response as the client was promised it: the outputs it wants among those that the model gave."""
        lead = 1 if self._signature.is_batched else 0
        given: dict[str, Array] = {}
        for spec in self._signature.outputs:
            array = outputs.get(spec.name)
            if array is None or spec.name not in item.output_names:
                continue
            if array.dtype != spec.datatype.numpy or array.ndim < lead or not fits(array.shape[lead:], spec.model_dims):
                raise BackendFailed(
                    f"output '{spec.name}' came as {array.dtype} of shape {list(array.shape)}, "
                    f"the signature says {spec.datatype.value} {list(spec.model_dims)}"
                )
            given[spec.name] = array if spec.reshape is None else reshaped(array, lead, spec.reshape, spec.dims)
        return given


class StreamingInstance(Instance):
    """A loaded model that may return any number of responses to a request. Confined to: the one worker that owns it.

    With `pipeline_depth` above 1, `respond` runs in that many threads at once.
    """

    batch_processor: type[BatchProcessor] | None = StreamingProcessor

    @abc.abstractmethod
    def respond(self, inputs: Arrays, output_names: Sequence[str], parameters: Parameters) -> Iterator[Arrays]:
        """The responses to one request, made as they are asked for; closed early when the client has gone.

        Args:
            inputs: By input name, each `[rows, *model_dims]` (no leading dimension where the model is not batched).
            output_names: The outputs wanted; a response may hold fewer.
            parameters: The client's own parameters.

        Raises:
            ServingError: with a message for the client; what was given before stays given.
        """

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        """The one response to a request of a model that is not served as decoupled."""
        responses = list(islice(self.respond(inputs, output_names, {}), 2))
        if len(responses) != 1:
            raise BackendFailed(f"expected a single response, got {'none' if not responses else 'more'}: the model is not decoupled")
        return responses[0]
