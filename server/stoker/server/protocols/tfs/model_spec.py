"""Which model, version and signature a request means.

Without version or label the highest READY version is meant. Labels are the operator's (`version_labels` of the model config file).
"""

from typing import NamedTuple

from stoker.backends.api.errors import InvalidRequest, NotFound, Unavailable
from stoker.server.core.limits import Limits
from stoker.server.core.state import ModelDescription
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow_serving.apis import model_pb2

DEFAULT_SIGNATURE = "serving_default"


class ModelQuery(NamedTuple):
    """A ModelSpec.

    Attributes:
        name: The model's.
        version: As asked for; None: not asked for by number.
        label: As asked for; empty: none.
        signature_name: As asked for; empty stands for the default.
    """

    name: str
    version: int | None = None
    label: str = ""
    signature_name: str = ""

    @property
    def servable(self) -> str:
        """How TensorFlow Serving names what was asked for in its errors."""
        name = self.name[:128]
        return f"Latest({name})" if self.version is None else f"Specific({name}, {self.version})"

    def answered(self, version: int, *, signature: bool = True) -> model_pb2.ModelSpec:
        """What an answer of `version` says; `signature`: whether it names the signature too."""
        spec = model_pb2.ModelSpec()
        self.fill_response(spec, version, signature=signature)
        return spec

    def fill_response(self, spec: model_pb2.ModelSpec, version: int, *, signature: bool = True) -> None:
        """As `answered`, into an empty `spec`."""
        spec.name = self.name
        spec.version.value = version
        if signature:
            spec.signature_name = self.signature_name or DEFAULT_SIGNATURE


def read_spec(spec: model_pb2.ModelSpec) -> ModelQuery:
    """What `spec` asks for."""
    version = spec.version.value if spec.HasField("version") else None
    return ModelQuery(spec.name, version, spec.version_label, spec.signature_name)


def resolve(engine: Engine, ask: ModelQuery, limits: Limits) -> ModelQuery:
    """`ask` with its label made a number.

    Raises:
        InvalidRequest: there is no name, it is too long, or the model has no such label.
    """
    if not ask.name:
        raise InvalidRequest("ModelSpec has no name specified")
    if max(len(ask.name), len(ask.label), len(ask.signature_name)) > limits.name_length:
        raise InvalidRequest(f"model, label and signature names may have {limits.name_length} characters, not more")
    if not ask.label:
        return ask
    version = engine.labelled_version(ask.name, ask.label)
    if version is None:
        raise InvalidRequest(f"Unrecognized servable version label: {ask.label}")
    return ask._replace(version=version, label="")


def describe(engine: Engine, ask: ModelQuery) -> ModelDescription:
    """What a request for `ask`, resolved, reaches now.

    Raises:
        NotFound: no such model or version, or it is not READY, in TensorFlow Serving's words.
    """
    try:
        return engine.describe(ask.name, ask.version)
    except (NotFound, Unavailable):
        raise not_found(ask) from None


def not_found(ask: ModelQuery) -> NotFound:
    """The error for what is not served."""
    return NotFound(f"Servable not found for request: {ask.servable}")
