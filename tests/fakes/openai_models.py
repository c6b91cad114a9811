"""Models of OpenAI's API on a fake engine: their tensors, and the responses that a test scripts."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.backends.api.errors import ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.request import Array, InferRequest, InferResponse
from tests.fakes.fake_engine import FakeEngine, FakeModel, model

Script = Callable[[InferRequest], Sequence[Mapping[str, Any] | ServingError]]

COUNTS = ("prompt_tokens", "completion_tokens")
_TYPES = {"finish_reason": DataType.BYTES, "tool_calls": DataType.BYTES, **dict.fromkeys(COUNTS, DataType.INT32)}


def declared(of: ModelSignature, endpoints: str, name: str = "m", function: Any = None) -> FakeModel:
    made = model(name, of, function or (lambda inputs: {}))
    made.config = dataclasses.replace(made.config, parameters={"openai": endpoints})
    return made


def writer(
    endpoints: str = "completions,chat",
    *,
    inputs: Sequence[TensorSpec] = (),
    outputs: Sequence[str] = (),
    max_batch_size: int = 0,
    is_decoupled: bool = True,
    name: str = "m",
) -> FakeModel:
    """A model of texts."""
    given = [TensorSpec(source, DataType.BYTES, (1,), optional=True) for source in ("prompt", "messages")]
    returned = [TensorSpec("text", DataType.BYTES, (1,)), *(TensorSpec(each, _TYPES[each], (1,)) for each in outputs)]
    return declared(ModelSignature((*given, *inputs), tuple(returned), max_batch_size, is_decoupled), endpoints, name)


def embedder(max_batch_size: int = 8, *, tokens: bool = False, counts: bool = False) -> FakeModel:
    """A model whose vectors are the length of the text, and 0.5."""
    batched = max_batch_size > 0
    dims = (1,) if batched else (-1,)
    inputs = [TensorSpec("text", DataType.BYTES, dims, optional=tokens)]
    if tokens:
        inputs.append(TensorSpec("tokens", DataType.INT64, (-1,), optional=True))
    outputs = [TensorSpec("embedding", DataType.FP32, (2,) if batched else (-1, 2))]
    if counts:
        outputs.append(TensorSpec("prompt_tokens", DataType.INT64, dims))

    def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
        lengths = [len(text) for text in given["text"].reshape(-1).tolist()] if "text" in given else [given["tokens"].sum()]
        vectors = np.array([[length, 0.5] for length in lengths], np.float32)
        return {"embedding": vectors, "prompt_tokens": np.array(lengths, np.int64).reshape(-1, *((1,) if batched else ()))}

    return declared(ModelSignature(tuple(inputs), tuple(outputs), max_batch_size), "embeddings", "e", run)


class ScriptedEngine(FakeEngine):
    """Its decoupled models respond as `script` says: scalars by output name, or an error."""

    def __init__(self, *models: FakeModel, script: Script, holds: bool = False) -> None:
        """`holds`: a stream waits after its last response until it is cancelled."""
        super().__init__(*models)
        self._script = script
        self._holds = holds
        #: Requests whose streams were left before their end.
        self.left: list[InferRequest] = []

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        self.requests.append(request)
        found = self.models[request.model_name]
        is_ended = False
        try:
            for outputs in self._script(request):
                if isinstance(outputs, ServingError):
                    is_ended = True
                    raise outputs
                await asyncio.sleep(0)
                arrays = {key: _array(value, request) for key, value in outputs.items()}
                yield InferResponse(request.model_name, 1, request.request_id, arrays, found.config.signature)
            if self._holds:
                await asyncio.Event().wait()
            is_ended = True
        finally:
            if not is_ended:
                self.left.append(request)
                self.cancellation.set()


def _array(value: Any, request: InferRequest) -> Array:
    values = value if isinstance(value, list) else [value]
    kind: Any = np.object_ if isinstance(values[0], str | bytes) else np.int32
    array = np.empty(len(values), kind)
    array[:] = [each.encode() if isinstance(each, str) else each for each in values]
    return array.reshape(-1, 1) if request.signature.is_batched else array
