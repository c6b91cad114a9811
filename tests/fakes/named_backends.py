"""Backends that only have names: for code that chooses one and never loads a model."""

from stoker.backends.api.backend import Backend, Instance, LoadRequest
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.api.registry import BackendRegistry


class NamedBackend(Backend):
    """Inspects to facts without tensors; refuses to load."""

    def __init__(
        self,
        name: str,
        default_model_filename: str,
        *,
        platforms: tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
        parameter_keys: frozenset[str] = frozenset(),
        instance_kinds: tuple[str, ...] = ("KIND_CPU",),
        devices: tuple[int, ...] = (),
        why_no_devices: str = "",
        takes_accelerators: bool = False,
    ) -> None:
        self.name = name
        self.default_model_filename = default_model_filename
        self.platforms = platforms
        self.aliases = aliases
        self.parameter_keys = parameter_keys
        self.instance_kinds = instance_kinds
        self.devices = devices
        self.reason = why_no_devices
        self.takes_accelerators = takes_accelerators

    def device_ids(self) -> tuple[int, ...]:
        return self.devices

    def why_no_devices(self) -> str:
        return self.reason

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return ModelFacts(inputs=None, outputs=None)

    def load(self, request: LoadRequest) -> Instance:
        raise ModelLoadError(f"backend '{self.name}' only has a name")


def onnx_like() -> NamedBackend:
    return NamedBackend(
        "onnxruntime",
        "model.onnx",
        platforms=("onnxruntime_onnx", "onnx"),
        aliases=("onnx",),
        parameter_keys=frozenset({"intra_op_thread_count"}),
    )


def registry() -> BackendRegistry:
    """Two backends: one like ONNX Runtime's, and `topsinference` of other files."""
    return BackendRegistry((onnx_like(), NamedBackend("topsinference", "model.exec", platforms=("topsinference",))))
