"""What an explicit load may bring along."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoadOverrides:
    """A configuration (ModelConfig as JSON) and files that replace the repository's for this load.

    Attributes:
        config_json: None: use config.pbtxt.
        files: By path relative to the model folder, such as `1/model.onnx`; only with `config_json`.
    """

    config_json: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
