"""The opaque blobs of our PopEF files, which extend the metadata: their names and the JSON that each carries.

The vendor's frameworks keep private payloads in opaque blobs, PopRT its fusion map and host-concat configuration among them. Stoker's are
JSON, written by `stoker.backends.ipu.compile` and read by `stoker.backends.ipu.runtime` and `popef_dump`. Readers check the contents,
because a file may be untrusted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

#: Facts about the compilation, for people and tools. The runtime does not need them.
COMPILATION = "stoker"
#: A `FusionMap`.
MODEL_FUSION = "model_fusion"
#: A `HostConcat`.
HOST_CONCAT = "host_concat"
#: How the packed inputs of a model are laid out: the JSON object that `packed_transformer` documents; `graphN/packing` where it is fused.
PACKING = "packing"
#: Further notes of passes, for people and tools: an object of strings, as in the converted model's metadata.
NOTES = "notes"

#: Version of the fusion map's JSON.
FUSION_MAP_VERSION = 1


#: More bytes than the names of any model take. Parsed JSON takes about thirty times its size in memory.
MAX_JSON_BYTES = 1 << 22


class OpaqueError(ValueError):
    """The content of an opaque blob does not match its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedAnchor:
    """One input or output of one model in a fused executable.

    Attributes:
        anchor: The stream's name in the metadata: `graph0/stream0`, `graph0/<output>`.
        tensor: The name in the model it came from.
        aliases: Further names that runners take for it: `graph0/<tensor>`.
        shape: Of one micro-batch.
        dtype: numpy's name, such as `float32`.
    """

    anchor: str
    tensor: str
    aliases: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGraph:
    """One model of a fused executable: its index and its streams."""

    index: int
    name: str
    model: str
    inputs: tuple[FusedAnchor, ...]
    outputs: tuple[FusedAnchor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionMap:
    """The streams of each model of a fused executable, and the input that selects a model.

    Attributes:
        index_anchor: The input that selects: uint8 of shape [1].
        index_dtypes: Types that runners take for it; all but the first are cast.
        graphs: In the order of their index.
    """

    graphs: tuple[FusedGraph, ...]
    index_anchor: str = "index"
    index_dtypes: tuple[str, ...] = ("uint8", "uint32")

    def to_bytes(self) -> bytes:
        """Returns the object as JSON in UTF-8."""
        return _dump({"version": FUSION_MAP_VERSION, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> "FusionMap":
        """Parses the map in an opaque blob.

        Raises:
            OpaqueError: the blob holds no such map, or one of an unknown version.
        """
        root = _Reading(MODEL_FUSION, _load(MODEL_FUSION, data))
        version = root.number("version")
        if version != FUSION_MAP_VERSION:
            raise OpaqueError(f"opaque blob '{MODEL_FUSION}': version {version}, this build reads {FUSION_MAP_VERSION}")
        graphs = tuple(
            FusedGraph(
                index=graph.number("index"),
                name=graph.text("name"),
                model=graph.text("model"),
                inputs=tuple(_anchor(each) for each in graph.objects("inputs")),
                outputs=tuple(_anchor(each) for each in graph.objects("outputs")),
            )
            for graph in root.objects("graphs")
        )
        return cls(graphs=graphs, index_anchor=root.text("index_anchor"), index_dtypes=root.texts("index_dtypes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatenatedInput:
    """One stream that carries several inputs of the model behind each other.

    Attributes:
        tensor_name: The stream.
        input_tensor_names: The model's inputs, in the order in which the host puts their bytes.
        shape: Of each of those inputs.
        dtype: Of each of those inputs, numpy's name.
        data_size_bytes: Of each of those inputs.
    """

    tensor_name: str
    input_tensor_names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    data_size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConcat:
    """Inputs that the host concatenates and the device splits (`apply_host_concat_split`)."""

    inputs: tuple[ConcatenatedInput, ...]

    def to_bytes(self) -> bytes:
        """Returns the object as JSON in UTF-8."""
        return _dump(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "HostConcat":
        """Parses the configuration in an opaque blob.

        Raises:
            OpaqueError: the blob holds no such configuration.
        """
        root = _Reading(HOST_CONCAT, _load(HOST_CONCAT, data))
        return cls(
            inputs=tuple(
                ConcatenatedInput(
                    tensor_name=each.text("tensor_name"),
                    input_tensor_names=each.texts("input_tensor_names"),
                    shape=each.numbers("shape"),
                    dtype=each.text("dtype"),
                    data_size_bytes=each.number("data_size_bytes"),
                )
                for each in root.objects("inputs")
            )
        )


def dump_facts(facts: Mapping[str, object]) -> bytes:
    """Returns a flat object of facts as JSON in UTF-8, for `COMPILATION` and `NOTES`."""
    return _dump(facts)


def load_facts(name: str, data: bytes) -> dict[str, object]:
    """Returns the facts in blob `name`.

    Raises:
        OpaqueError: it holds no JSON object.
    """
    return _load(name, data)


def _anchor(each: "_Reading") -> FusedAnchor:
    return FusedAnchor(
        anchor=each.text("anchor"),
        tensor=each.text("tensor"),
        aliases=each.texts("aliases"),
        shape=each.numbers("shape"),
        dtype=each.text("dtype"),
    )


def _dump(value: Mapping[str, object]) -> bytes:
    # Sorted keys and fixed spacing, so that compiling twice gives the same file.
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _load(name: str, data: bytes) -> dict[str, object]:
    if len(data) > MAX_JSON_BYTES:
        raise OpaqueError(f"opaque blob '{name}' has {len(data)} bytes; at most {MAX_JSON_BYTES} are expected")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OpaqueError(f"opaque blob '{name}' is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise OpaqueError(f"opaque blob '{name}' holds a {type(value).__name__}, expected an object")
    return value


class _Reading:
    """A JSON object being parsed, with its position for errors."""

    def __init__(self, where: str, fields: Mapping[str, object]) -> None:
        self._where = where
        self._fields = fields

    def text(self, key: str) -> str:
        value = self._fields.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def number(self, key: str) -> int:
        value = self._fields.get(key)
        if not _is_size(value):
            raise self._wrong(key, "a whole number from 0")
        return int(value)  # type: ignore[call-overload, no-any-return] # _is_size

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._list(key)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(key, "a list of strings")
        return tuple(str(value) for value in values)

    def numbers(self, key: str) -> tuple[int, ...]:
        values = self._list(key)
        if not all(_is_size(value) for value in values):
            raise self._wrong(key, "a list of whole numbers from 0")
        return tuple(int(value) for value in values)  # type: ignore[call-overload] # _is_size

    def objects(self, key: str) -> list["_Reading"]:
        values = self._list(key)
        if not all(isinstance(value, dict) for value in values):
            raise self._wrong(key, "a list of objects")
        return [_Reading(f"{self._where}.{key}[{at}]", value) for at, value in enumerate(values) if isinstance(value, dict)]

    def _list(self, key: str) -> Sequence[object]:
        value = self._fields.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def _wrong(self, key: str, expected: str) -> OpaqueError:
        return OpaqueError(f"opaque blob '{self._where}': '{key}' is {self._fields.get(key)!r}, expected {expected}")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
