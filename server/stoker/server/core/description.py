"""What a frontend may know of a served version."""

from dataclasses import dataclass

from stoker.server.core.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A READY version as clients see it.

    Attributes:
        config: Its completed configuration; `config.signature` is what requests are validated against.
        version: The version described.
        ready_versions: All versions of the model that are READY, ascending.
    """

    config: ModelConfig
    version: int
    ready_versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """Answer to "who are you": name, version, protocol extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]
