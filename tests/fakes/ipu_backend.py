"""The `poplar` backend in a test: writes version folders, inspects, loads and runs them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.batch import Array
from stoker.backends.api.candidate import Candidate, Violation
from stoker.backends.api.model import ModelFacts, ModelSignature
from stoker.backends.ipu.backend import PoplarBackend
from stoker.backends.testing.samples import version_files


@dataclass
class Bench:
    """A backend and where its versions lie.

    Attributes:
        folder: For the version folders.
        backend: Of its own.
        instances: What was loaded and is still open.
    """

    folder: Path
    backend: PoplarBackend
    instances: list[Instance] = field(default_factory=list)

    def request(
        self,
        popef: bytes,
        served: ModelSignature,
        *,
        name: str = "model",
        version: int = 1,
        name_map: str | None = None,
        **parameters: str,
    ) -> LoadRequest:
        files = {"executable.popef": popef} | ({} if name_map is None else {"name_map.json": name_map.encode()})
        return LoadRequest(
            model_name=name,
            version=version,
            files=version_files(self.folder / name / str(version), files),
            model_filename="executable.popef",
            signature=served,
            parameters=parameters,
        )

    def load(self, popef: bytes, served: ModelSignature, **rest: Any) -> Instance:
        self.instances.append(self.backend.load(self.request(popef, served, **rest)))
        return self.instances[-1]

    def facts(self, popef: bytes, served: ModelSignature, **rest: Any) -> ModelFacts:
        request = self.request(popef, served, **rest)
        return self.backend.inspect(request.files, request.model_filename)

    def violations(self, popef: bytes, served: ModelSignature, **rest: Any) -> list[Violation]:
        request = self.request(popef, served, **rest)
        facts = self.backend.inspect(request.files, request.model_filename)
        return list(self.backend.check(Candidate(facts=facts, signature=served, parameters=request.parameters)))

    def figure(self, name: str, **labels: str) -> float:
        """The sum of the figures of that name and labels."""
        wanted = labels.items()
        return sum(each.value for each in self.backend.figures() if each.name == name and wanted <= each.labels.items())

    def close(self) -> None:
        for instance in self.instances:
            instance.close()
        self.instances.clear()


def output_of(instance: Instance, x: Array, name: str = "y") -> Array:
    """The output `name` for `x`."""
    return np.asarray(instance.execute({"x": x}, [name])[name])
