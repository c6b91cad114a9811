"""Selects the protocol of a REST request below /v1: Adlik and TensorFlow Serving use the same two URLs.

`--rest_v1=adlik` and `--rest_v1=tfs` decide for every request. Under `auto`:

* The body of a POST to `:predict` decides. `instances` is only TensorFlow Serving's; `batch_size`, `model_spec` and `output_filter` are
  only Adlik's. Where `inputs` stands alone, it is Adlik's if it is an object whose every value is a TensorProto: an object with
  `tensor_content`, `dtype`, `tensor_shape` or a field of typed values such as `float_val`. A body with nothing of either is a mistake,
  and TensorFlow Serving's, which has many more clients, unless `--prefer_adlik` is set: its front says what is missing.
* GET of `metadata` has no body. The response has Adlik's form where `--prefer_adlik` is set (`adlik_serving` sets it) and for models
  whose platform is one that only Adlik names so, such as `topsinference`.
* The query `?format=adlik` or `?format=tfs` decides for one request, whatever else is set.
* `:ml_predict` is Adlik's alone.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensor_proto import VALUE_FIELDS
from stoker.server.config.pbtxt import ADLIK_PLATFORMS
from stoker.server.protocols.adlik.json_codec import camel_case
from stoker.server.protocols.settings import AdlikSettings, RestV1


def _spellings(*names: str) -> frozenset[str]:
    """`names` in snake_case and in camelCase."""
    return frozenset(names) | frozenset(map(camel_case, names))


_ADLIKS: Final = _spellings("batch_size", "model_spec", "output_filter")
_TENSOR_FIELDS: Final = _spellings("tensor_content", "dtype", "tensor_shape", *VALUE_FIELDS.values())


class Dialect(Enum):
    """A protocol below /v1."""

    ADLIK = auto()
    TFS = auto()


def forced(settings: AdlikSettings, query: Mapping[str, str]) -> Dialect | None:
    """The protocol that the query or the operator has chosen; None: the request decides.

    Raises:
        InvalidRequest: the query names another protocol.
    """
    requested = query.get("format", "").lower()
    if requested:
        if requested not in ("adlik", "tfs"):
            raise InvalidRequest(f"format={requested[:64]} is not known: expected adlik or tfs")
        return Dialect[requested.upper()]
    return None if settings.rest_v1 is RestV1.AUTO else Dialect[settings.rest_v1.value.upper()]


def of_body(settings: AdlikSettings, given: Json) -> Dialect:
    """The protocol of a `:predict` request by its body."""
    preferred = Dialect.ADLIK if settings.prefer_adlik else Dialect.TFS
    if not isinstance(given, dict):
        return preferred
    if "instances" in given:
        return Dialect.TFS
    if _has_any(given, _ADLIKS):
        return Dialect.ADLIK
    inputs = given.get("inputs")
    if not inputs:
        return preferred
    if isinstance(inputs, dict) and all(map(_is_tensor, inputs.values())):
        return Dialect.ADLIK
    return Dialect.TFS


def of_platform(settings: AdlikSettings, platform: str) -> Dialect:
    """The protocol of the metadata response for a model of `platform`."""
    return Dialect.ADLIK if settings.prefer_adlik or platform in ADLIK_PLATFORMS else Dialect.TFS


def _is_tensor(value: Json) -> bool:
    return isinstance(value, dict) and _has_any(value, _TENSOR_FIELDS)


def _has_any(given: dict[str, Json], names: frozenset[str]) -> bool:
    """Whether a member of `given` has one of `names` and is not null."""
    # Nearly every request has none of them; the loop would look up each name.
    if names.isdisjoint(given):
        return False
    return any(given.get(name) is not None for name in names)
