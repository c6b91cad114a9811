"""`Context`: what a model knows of the place where it runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from stoker.backends.api.backend import Arrays
from stoker.backends.api.calls import ModelCall, ModelCalls


class Context:
    """The argument of a model class's `__init__(self, context)`.

    Attributes:
        model_name: The name of the model.
        version: Its version.
        folder: The folder of model.py and the files beside it.
        parameters: `parameters` of config.pbtxt.
        instance_name: Such as `digits_0`.
        cpu_threads: CPU threads that this instance may keep busy.
        device_id: The device of `instance_group.gpus`; None: none was named.
    """

    def __init__(
        self,
        *,
        model_name: str,
        version: int,
        folder: Path,
        parameters: Mapping[str, str],
        instance_name: str,
        cpu_threads: int,
        device_id: int | None,
        calls: ModelCalls | None,
    ) -> None:
        self.model_name = model_name
        self.version = version
        self.folder = folder
        self.parameters = MappingProxyType(dict(parameters))
        self.instance_name = instance_name
        self.cpu_threads = cpu_threads
        self.device_id = device_id
        self._calls = calls

    def call(self, model_name: str, **inputs: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Arrays:
        """Asks another model of the server; its outputs by name.

        Raises:
            ServingError: the other model failed or rejected the request, or did not respond exactly once.
        """
        responses = list(self.stream(model_name, **inputs))
        if len(responses) != 1:
            raise RuntimeError(f"model '{model_name}' sent {len(responses)} responses: use stream()")
        return responses[0]

    def stream(self, model_name: str, **inputs: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Iterator[Arrays]:
        """Asks another model that may respond any number of times; the outputs of each response by name.

        Raises:
            ServingError: the other model failed or rejected the request.
        """
        if self._calls is None:
            raise RuntimeError("this model cannot ask other models: the server gave it no way to them")
        for response in self._calls.call(ModelCall(model_name=model_name, inputs=inputs)):
            yield response.outputs
