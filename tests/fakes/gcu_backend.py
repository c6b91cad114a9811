"""The `topsinference` backend in a test: writes version folders, inspects, loads and runs them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.batch import Array, BatchItem, BatchResult, processor_for
from stoker.backends.api.candidate import Candidate, Violation
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.model import ModelFacts, ModelSignature
from stoker.backends.gcu.backend import TopsInferenceBackend
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.testing.samples import version_files
from tests.fakes.gcu_served import file_of


@dataclass
class CardBench:
    """A backend and where its versions lie.

    Attributes:
        folder: For the version folders.
        backend: Of its own.
        instances: What was loaded and is still open.
    """

    folder: Path
    backend: TopsInferenceBackend
    instances: list[Instance] = field(default_factory=list)

    def request(
        self,
        source: GcuExecutable | bytes,
        served: ModelSignature,
        *,
        name: str = "model",
        version: int = 1,
        card: int | None = None,
        siblings: int = 1,
        **parameters: str,
    ) -> LoadRequest:
        content = source if isinstance(source, bytes) else file_of(source)
        return LoadRequest(
            model_name=name,
            version=version,
            files=version_files(self.folder / name / str(version), {"model.exec": content}),
            model_filename="model.exec",
            signature=served,
            parameters=parameters,
            device_id=card,
            siblings=siblings,
        )

    def load(self, source: GcuExecutable | bytes, served: ModelSignature, **rest: Any) -> Instance:
        self.instances.append(self.backend.load(self.request(source, served, **rest)))
        return self.instances[-1]

    def facts(self, source: GcuExecutable | bytes, served: ModelSignature, **rest: Any) -> ModelFacts:
        request = self.request(source, served, **rest)
        return self.backend.inspect(request.files, request.model_filename)

    def violations(self, source: GcuExecutable | bytes, served: ModelSignature, **rest: Any) -> list[Violation]:
        request = self.request(source, served, **rest)
        facts = self.backend.inspect(request.files, request.model_filename)
        return list(self.backend.check(Candidate(facts=facts, signature=served, parameters=request.parameters)))

    def figure(self, name: str, **labels: str) -> float:
        """The sum of the figures of that name and labels."""
        wanted = labels.items()
        return sum(each.value for each in self.backend.figures() if each.name == name and wanted <= each.labels.items())

    def unload(self, instance: Instance) -> None:
        self.instances.remove(instance)
        instance.close()

    def close(self) -> None:
        for instance in list(self.instances):
            self.unload(instance)


def output_of(instance: Instance, x: Array, name: str = "y") -> Array:
    """The output `name` for `x`."""
    return np.asarray(instance.execute({"x": x}, [name])[name])


def batch(instance: Instance, served: ModelSignature, arrays: Sequence[Array]) -> BatchResult:
    """The outcomes of the instance's own processor for one request per element of `arrays`, each for output `y`."""
    items = [BatchItem({"x": array}, len(array) if served.is_batched else 1, ("y",)) for array in arrays]
    return processor_for(instance, served, SystemClock()).process(items)
