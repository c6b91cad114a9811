"""`TritonInstance`: a model with Triton's interface, a class `TritonPythonModel` with `initialize`, `execute` and `finalize`.

`execute` gets all requests of a batch at once, each as an object of its own, and is never called in two threads at once. A request ends
with the response that `execute` returns for it, or with the FINAL flag of its response sender. A batch ends when all its requests have
ended; a decoupled model may begin the next ones meanwhile, up to `pipeline_depth`.

The requests of an iterative sequence (`ModelSignature.is_iterative`) share batches, also if the model is decoupled. `execute` may ask for a
further execution of a request: then its outcome in this batch is `Rescheduled`.
"""

import asyncio
import inspect
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

from stoker.backends.api.backend import Arrays, Instance, LoadRequest
from stoker.backends.api.batch import BatchItem, BatchProcessor, BatchResult, Outcome, Share
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendFailed, ModelLoadError, ServingError, Unsupported
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.request_share import RequestShare
from stoker.backends.api.response_parameters import with_parameters
from stoker.backends.api.streaming import DECOUPLED_ONLY
from stoker.backends.python.errors import failure_of, serving_error
from stoker.backends.python.event_loop import EventLoopThread
from stoker.backends.python.importing import ModelImport, load_failure
from stoker.backends.python.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferenceRequest, InferenceTrace
from stoker.backends.python.responses import InferenceResponse, RequestEnd
from stoker.backends.python.signature_check import SignatureCheck
from stoker.backends.python.tensors import Tensor, held

CLASS_NAME = "TritonPythonModel"
log = logging.getLogger("stoker.backends")


class TritonProcessor(BatchProcessor):
    """Gives each batch to `execute` as separate requests. Confined to: one slot of one worker."""

    def __init__(self, instance: Instance, signature: ModelSignature, clock: Clock) -> None:
        self._model = cast("TritonInstance", instance)
        self._check = SignatureCheck(signature)
        self._signature = signature
        self._clock = clock

    def process(self, items: Sequence[Share]) -> BatchResult:
        now_ns = self._clock.now_ns
        result = BatchResult([])
        start = now_ns()
        lock = threading.RLock()
        ends = [RequestEnd(cast("RequestShare", item), self._taken, self._signature.is_decoupled, lock) for item in items]
        executed = start
        try:
            requests = self._requests(items, ends)
            executed = now_ns()
            result.input_ns = executed - start
            self._execute(requests, ends)
            # With the last reference a request without FINAL ends.
            del requests
        except BaseException as error:  # noqa: BLE001 - whatever the model raises becomes the failure of its batch
            failure = failure_of(error)
            for end in ends:
                end.end(failure)
            # Its traceback holds this frame, and so the inputs.
            del failure
        result.outcomes = [end.wait() for end in ends]
        result.infer_ns = now_ns() - executed
        if not all(isinstance(outcome, ServingError) for outcome in result.outcomes):
            result.executions.append(sum(item.rows for item in items))
        return result

    def process_apart(self, first: Share, next_item: Callable[[], Share | None]) -> BatchResult:
        result = BatchResult([])
        apart_ns = result.apart_ns = []
        item: Share | None = first
        while item is not None:
            alone = self.process([item])
            result.outcomes += alone.outcomes
            apart_ns.append((alone.input_ns, alone.infer_ns, alone.output_ns))
            if not alone.executions:
                return result
            result.executions += alone.executions
            result.input_ns += alone.input_ns
            result.infer_ns += alone.infer_ns
            item = next_item()
        return result

    def _requests(self, items: Sequence[Share], ends: Sequence[RequestEnd]) -> list[InferenceRequest]:
        made = []
        for item, end in zip(items, ends, strict=True):
            share = cast("RequestShare", item)
            if self._signature.is_decoupled and share.responses is None:
                end.end(Unsupported(DECOUPLED_ONLY))
                continue
            request = self._request(share)
            request.hold(end)
            made.append(request)
        return made

    def _request(self, share: RequestShare) -> InferenceRequest:
        sequence = share.sequence
        flags = 0
        if sequence is not None:
            flags = (FLAG_SEQUENCE_START if sequence.is_start else 0) | (FLAG_SEQUENCE_END if sequence.is_end else 0)
        return self._model.request_class(
            request_id=share.request_id,
            correlation_id=0 if sequence is None else sequence.id,
            inputs=[Tensor.of(spec.name, array, spec.datatype) for spec, array in self._check.inputs(share)],
            requested_output_names=share.output_names,
            model_name=share.model_name,
            model_version=-1 if share.model_version is None else share.model_version,
            flags=flags,
            timeout=share.timeout_us,
            trace=InferenceTrace(share.trace_context),
            parameters=share.parameters,
            priority=share.priority,
        )

    def _taken(self, response: InferenceResponse, share: Share) -> Mapping[str, Any]:
        tensors = {tensor.name(): held(tensor) for tensor in response.output_tensors()}
        is_whole = not self._signature.is_decoupled
        wanted: Sequence[str] = share.output_names
        if self._signature.is_iterative:
            # The last execution of a request needs not return states.
            wanted = [name for name in wanted if name in tensors or name not in self._model.state_names]
        outputs = self._check.outputs(tensors, wanted, is_whole=is_whole, rows=share.rows)
        return with_parameters(outputs, response.sent_parameters)

    def _states(self, response: InferenceResponse, share: RequestShare) -> Mapping[str, Any]:
        """The states in what `execute` returned for a request that it reschedules.

        Raises:
            BackendFailed: there are other outputs, or one contradicts the signature.
        """
        tensors = {tensor.name(): held(tensor) for tensor in response.output_tensors()}
        names = [name for name in tensors if name in self._model.state_names]
        if not names or len(names) < len(tensors):
            raise BackendFailed(
                "Expected a None object in the execute function return list for rescheduled request, found type 'InferenceResponse'; only "
                f"an InferenceResponse of states may be returned: {', '.join(self._model.state_names) or 'the model has none'}"
            )
        return self._check.outputs(tensors, names, is_whole=True, rows=share.rows)

    def _execute(self, requests: list[InferenceRequest], ends: Sequence[RequestEnd]) -> None:
        running = [end for end in ends if end.outcome is None]
        if not running:
            return
        returned = self._model.run(requests)
        if self._signature.is_decoupled:
            if returned is not None and any(response is not None for response in returned):
                raise BackendFailed("execute of a decoupled model must return None: responses go through get_response_sender()")
            for request, end in zip(requests, running, strict=True):
                if request.is_rescheduled:
                    end.reschedule({})
            return
        for request, end, response in zip(requests, running, _responses(returned, requests, running), strict=True):
            if request.is_rescheduled:
                self._reschedule(end, response)
            elif response is not None:
                end.respond(response)
                end.end()
            elif not end.has_sender:
                end.end(BackendFailed("execute returned None for the request, and took no response sender for it"))

    def _reschedule(self, end: RequestEnd, response: InferenceResponse | None) -> None:
        if response is not None and (error := response.error()) is not None:
            end.end(serving_error(error))
            return
        try:
            states = {} if response is None else self._states(response, end.share)
        except Exception as failure:  # noqa: BLE001 - tensors are of the model: this request's failure
            end.end(failure_of(failure))
        else:
            end.reschedule(states)


def _responses(returned: Any, requests: Sequence[InferenceRequest], ends: Sequence[RequestEnd]) -> Sequence[InferenceResponse | None]:
    count = len(requests)
    if returned is None and all(end.has_sender or request.is_rescheduled for request, end in zip(requests, ends, strict=True)):
        return [None] * count
    if not isinstance(returned, (list, tuple)):
        raise BackendFailed(f"execute must return a list of InferenceResponse objects, not {type(returned).__name__}")
    if len(returned) != count:
        raise BackendFailed(f"execute returned {len(returned)} responses for {count} requests: it must return one for each, in order")
    for end, response in zip(ends, returned, strict=True):
        if response is not None and not isinstance(response, InferenceResponse):
            end.end(BackendFailed(f"execute returned {type(response).__name__} for the request instead of an InferenceResponse"))
    return [response if isinstance(response, InferenceResponse) else None for response in returned]


class TritonInstance(Instance):
    """One `TritonPythonModel` object. Confined to: the one worker that owns it; `run` serialises its calls of `execute`."""

    batch_processor = TritonProcessor
    reads_requests = True
    calls_models = True

    def __init__(self, request: LoadRequest, module: ModuleType, model_import: ModelImport, request_class: type[InferenceRequest]) -> None:
        """Makes the model object and initialises it. REQUIRES: `model_import` is active.

        Args:
            request: The load.
            module: The module of the model's file.
            model_import: Its modules.
            request_class: The class of requests of this instance's `triton_python_backend_utils`.

        Raises:
            ModelLoadError: the class has no `execute`, or the model raised.
        """
        self.request_class = request_class
        request_class.is_iterative = request.signature.is_iterative
        #: The outputs of the states that the server keeps.
        self.state_names = _state_names(request.config_json)
        self._module = module
        self._import = model_import
        self._signature = request.signature
        self._lock = threading.Lock()
        self._loop: EventLoopThread | None = None
        model_class = getattr(module, CLASS_NAME)
        if not callable(getattr(model_class, "execute", None)):
            raise ModelLoadError(f"{request.model_filename}: class {CLASS_NAME} has no method 'execute'")
        try:
            self._model = model_class()
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize(self._arguments(request))
        except BaseException as error:
            raise load_failure(error, model_import.root, f"{CLASS_NAME}.initialize") from error
        self._is_async = inspect.iscoroutinefunction(self._model.execute)
        if self._is_async:
            self._loop = EventLoopThread(f"model-{request.instance_name}")

    @staticmethod
    def _arguments(request: LoadRequest) -> dict[str, str]:
        """The argument of `initialize`; all values are text."""
        return {
            "model_config": request.config_json or json.dumps({"name": request.model_name}),
            "model_instance_kind": request.kind.removeprefix("KIND_"),
            "model_instance_name": request.instance_name,
            "model_instance_device_id": str(request.device_id or 0),
            "model_repository": str(request.model_dir or request.files.root),
            "model_version": str(request.version),
            "model_name": request.model_name,
        }

    def run(self, requests: list[InferenceRequest]) -> Any:
        """Calls `execute`; what it returned. Calls of several threads wait for each other, but not for `async def execute`."""
        if self._loop is not None:
            return self._loop.run(self._model.execute(requests))
        with self._lock:
            return self._model.execute(requests)

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        rows = len(next(iter(inputs.values()))) if self._signature.is_batched and inputs else 1
        processor = TritonProcessor(self, self._signature, _NO_CLOCK)
        outcome: Outcome = processor.process([BatchItem(inputs, rows, tuple(output_names))]).outcomes[0]
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome

    def close(self) -> None:
        try:
            finalize = getattr(self._model, "finalize", None)
            if finalize is not None:
                result = finalize()
                if inspect.iscoroutine(result):
                    self._loop.run(result) if self._loop is not None else asyncio.run(result)
        finally:
            if self._loop is not None:
                self._loop.close()
            self._import.forget(self._module)


def _state_names(config_json: str) -> tuple[str, ...]:
    batching = json.loads(config_json or "{}").get("sequence_batching", {})
    return tuple(state["output_name"] for state in batching.get("state", ()))


class _NoClock:
    """Measures nothing."""

    def now_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0


_NO_CLOCK = _NoClock()
