"""The configuration to serve, checked before a device is used: `Candidate` and the `Violation`s a backend finds in it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import ModelFacts, ModelSignature


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing of a configuration that a backend cannot serve.

    Attributes:
        field: Path of the field in config.pbtxt, such as `input[1].dims` or `parameters["execution_mode"]`; the server finds its line.
        message: What is wrong, and what is allowed.
    """

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One entry of config.pbtxt `optimization.execution_accelerators`: an engine that takes over parts of the graph.

    Attributes:
        name: Such as `tensorrt`.
        parameters: Key to value.
        path: Path of the entry in config.pbtxt, for violations.
    """

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    path: str = "optimization.execution_accelerators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The properties of a version that are known without a device.

    Attributes:
        facts: What the backend's `inspect` read from the file.
        signature: The completed signature; None if configuration and file already contradict each other, so that it has none.
        parameters: config.pbtxt `parameters`, key to string value.
        graph_level: config.pbtxt `optimization.graph.level`; None where not written.
        gpu_accelerators: config.pbtxt `optimization.execution_accelerators.gpu_execution_accelerator`, for instances of KIND_GPU.
        cpu_accelerators: config.pbtxt `optimization.execution_accelerators.cpu_execution_accelerator`.
    """

    facts: ModelFacts
    signature: ModelSignature | None
    parameters: Mapping[str, str] = field(default_factory=dict)
    graph_level: int | None = None
    gpu_accelerators: tuple[Accelerator, ...] = ()
    cpu_accelerators: tuple[Accelerator, ...] = ()


def parameter_path(key: str) -> str:
    """The path of an entry of `parameters`: `parameters["execution_mode"]`."""
    return f"parameters[{json.dumps(key, ensure_ascii=False)}]"


def reject(violations: Iterable[Violation]) -> None:
    """Rejects a load that has violations.

    Raises:
        ModelLoadError: there is at least one; the message has all of them.
    """
    found = [str(violation) for violation in violations]
    if found:
        raise ModelLoadError("; ".join(found))
