"""Which model and version a request means, and what its answer says of that.

Without a version the highest READY one is meant. Of version labels, `stable` means the lowest READY version and any other the highest:
so it is in Adlik.
"""

from typing import NamedTuple

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.parameters import check_model_name
from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.pb.adlik import model_pb2

STABLE = "stable"
_INT64_MAX = (1 << 63) - 1


class ModelQuery(NamedTuple):
    """A ModelSpec.

    Attributes:
        name: The model's.
        version: As asked for; None: not asked for by number.
        label: As asked for; empty: none.
    """

    name: str
    version: int | None = None
    label: str = ""

    @property
    def echo(self) -> model_pb2.ModelSpec:
        """What an answer says: name and number as asked for, 0 where no number was (as Adlik's batching runtimes answer)."""
        spec = model_pb2.ModelSpec(name=self.name)
        spec.version.value = self.version or 0
        return spec


def read_spec(spec: model_pb2.ModelSpec) -> ModelQuery:
    """What `spec` asks for; the signature name, which only TensorFlow models have, is ignored."""
    version = spec.version.value if spec.HasField("version") else None
    return ModelQuery(spec.name, version, spec.version_label)


def served_version(engine: Engine, ask: ModelQuery, limits: Limits) -> int | None:
    """The version number that `ask` means now; None: the highest READY one, whichever that is.

    Raises:
        InvalidRequest: the name cannot be a model's, or the version is not positive. And as `Engine.describe`.
    """
    if len(ask.name) > limits.name_length:
        raise InvalidRequest(f"model name has {len(ask.name)} characters, more than the {limits.name_length} allowed")
    if not ask.name:
        raise InvalidRequest("model_spec.name is missing")
    check_model_name(ask.name)
    if ask.version is not None:
        if not 0 < ask.version <= _INT64_MAX:
            raise InvalidRequest(f"model_spec.version {ask.version} cannot be a version: they are 1 to {_INT64_MAX}")
        return ask.version
    if ask.label == STABLE:
        return min(engine.describe(ask.name, None).ready_versions, default=None)
    return None
