"""Reads config.pbtxt, or a ModelConfig in JSON, of Triton's or Adlik's schema into `ParsedConfig`.

Adlik's configuration shares most names with Triton's. Its own names are added to a private copy of the schema: a few fields, and
TensorFlow's names of the element types. The same code therefore reads both forms, and unambiguous mixtures of them, with the same error
messages.

The forms differ in one rule: Adlik batches every model, Triton only those with a scheduler. `AdlikForm.is_adlik` states which rule applies.

JSON follows proto3's mapping: proto field names or their camelCase, maps as objects, 64-bit integers as numbers or strings, null for "not
written".
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from stoker.server.config.checks import check_config, check_unsupported
from stoker.server.config.ensemble import check_ensemble, is_ensemble, read_ensemble
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import MAX_DEPTH, MAX_TEXT_BYTES, ConfigError, Problem, Report, field_parents
from stoker.server.config.text_format import Binder, Block, Entry, Scalar, ScalarKind, Value, parse_tree
from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy
from stoker.server.pb import model_config_pb2 as pb

#: Field numbers and enum values of Adlik's own names start here; `1000 + n` is TensorFlow's name for Triton's element type `n`.
ADLIK_NUMBERS = 1000

_TENSORFLOW_TYPES = {
    "DT_BOOL": pb.TYPE_BOOL,
    "DT_UINT8": pb.TYPE_UINT8,
    "DT_UINT16": pb.TYPE_UINT16,
    "DT_UINT32": pb.TYPE_UINT32,
    "DT_UINT64": pb.TYPE_UINT64,
    "DT_INT8": pb.TYPE_INT8,
    "DT_INT16": pb.TYPE_INT16,
    "DT_INT32": pb.TYPE_INT32,
    "DT_INT64": pb.TYPE_INT64,
    "DT_HALF": pb.TYPE_FP16,
    "DT_FLOAT": pb.TYPE_FP32,
    "DT_DOUBLE": pb.TYPE_FP64,
    "DT_STRING": pb.TYPE_STRING,
    "DT_BFLOAT16": pb.TYPE_BF16,
}
#: Platform names of Adlik that Triton does not have (`tensorrt_plan` belongs to both).
ADLIK_PLATFORMS = frozenset({
    "tensorflow", "tensorflow-tensorrt", "tensorflow_lite", "openvino", "paddle", "tvm", "libtorch", "topsinference", "ml", "onnx",
})  # fmt: skip
#: Top-level fields that both forms have; any other tells Triton's.
_SHARED_FIELDS = frozenset({
    "name", "platform", "version_policy", "max_batch_size", "input", "output", "instance_group", "dynamic_batching",
    "platform_version", "algorithm",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AdlikForm:
    """The fields of a configuration that Triton does not have.

    Attributes:
        is_adlik: Whether Adlik's rule applies: every model with a max_batch_size is batched.
        max_enqueued_batches: Bound of the queue in batches; 0: not written.
        serves_nothing: Whether the version policy is `none`.
    """

    is_adlik: bool = False
    max_enqueued_batches: int = 0
    serves_nothing: bool = False


def new_message() -> Message:
    """An empty message of the extended schema."""
    return _EXTENDED()


def to_triton(message: Message, numeric_enums: list[str], report: Report) -> tuple[pb.ModelConfig, AdlikForm]:
    """Splits a message of the extended schema into Triton's form and Adlik's fields; reports contradictions between the two forms."""
    batching = message.dynamic_batching  # type: ignore[attr-defined] # the class is made at run time
    policy = message.version_policy  # type: ignore[attr-defined]
    none_is_written = policy.WhichOneof("policy_choice") == "none"
    has_tensorflow_types = _rename_types(message)
    own_fields = [name for name in ("platform_version", "algorithm") if getattr(message, name)]
    is_marked = bool(
        own_fields or none_is_written or has_tensorflow_types or batching.max_enqueued_batches or batching.pad_variable_length_inputs
    )
    form = AdlikForm(
        is_adlik=is_marked or (message.platform in ADLIK_PLATFORMS and not _is_tritons(message)),  # type: ignore[attr-defined]
        max_enqueued_batches=batching.max_enqueued_batches,
        serves_nothing=none_is_written,
    )
    _check(message, form, numeric_enums, report)
    for name in own_fields:
        # Kept for backends and for clients that read the model's configuration.
        message.parameters[name].string_value = getattr(message, name)  # type: ignore[attr-defined]
        message.ClearField(name)
    if none_is_written:
        message.ClearField("version_policy")
    batching_is_written = message.HasField("dynamic_batching")
    if batching_is_written:
        batching.ClearField("max_enqueued_batches")
        batching.ClearField("pad_variable_length_inputs")
    return pb.ModelConfig.FromString(message.SerializeToString()), form


def _check(message: Message, form: AdlikForm, numeric_enums: list[str], report: Report) -> None:
    batching = message.dynamic_batching  # type: ignore[attr-defined]
    if form.max_enqueued_batches < 0:
        report.error("dynamic_batching.max_enqueued_batches", f"takes 0 or more, not {form.max_enqueued_batches}")
    policies = {"dynamic_batching.default_queue_policy": batching.default_queue_policy}
    policies |= {f"dynamic_batching.priority_queue_policy[{key}]": policy for key, policy in batching.priority_queue_policy.items()}
    for path, policy in policies.items():
        if form.max_enqueued_batches and policy.max_queue_size:
            report.error(f"{path}.max_queue_size", "contradicts 'max_enqueued_batches': both bound the same queue, write one of them")
    if batching.pad_variable_length_inputs:
        report.warn("dynamic_batching.pad_variable_length_inputs", "has no effect: requests of different shapes are batched apart")
    if form.is_adlik:
        for path in numeric_enums:
            if path.endswith(".data_type"):
                report.error(
                    path, "a number means another type in Adlik's form than in Triton's; write a name such as TYPE_FP32 or DT_FLOAT"
                )


def _is_tritons(message: Message) -> bool:
    """Whether a field of the (already renamed) message belongs to Triton's form only."""
    tensors = [*message.input, *message.output]  # type: ignore[attr-defined]
    return any(field.name not in _SHARED_FIELDS for field, _ in message.ListFields()) or any(tensor.data_type for tensor in tensors)


def _rename_types(message: Message) -> bool:
    """Replaces TensorFlow's element types by Triton's everywhere below `message`; returns whether there were any."""
    found = False
    for field, value in message.ListFields():
        if field.enum_type is not None and field.enum_type.name == "DataType" and value >= ADLIK_NUMBERS:
            setattr(message, field.name, value - ADLIK_NUMBERS)
            found = True
        elif field.message_type is not None:
            is_map = field.message_type.GetOptions().map_entry
            members = value.values() if is_map else value if field.is_repeated else [value]
            for member in members:
                if isinstance(member, Message):
                    found |= _rename_types(member)
    return found


def _extended_class() -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    messages = {message.name: message for message in file.message_type}
    kinds = descriptor_pb2.FieldDescriptorProto
    for owner, name, kind in (
        ("ModelConfig", "platform_version", kinds.TYPE_STRING),
        ("ModelConfig", "algorithm", kinds.TYPE_STRING),
        ("ModelDynamicBatching", "max_enqueued_batches", kinds.TYPE_INT64),
        ("ModelDynamicBatching", "pad_variable_length_inputs", kinds.TYPE_BOOL),
    ):
        number = ADLIK_NUMBERS + len(messages[owner].field)
        messages[owner].field.add(name=name, json_name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    messages["ModelVersionPolicy"].field.add(
        name="none", json_name="none", number=ADLIK_NUMBERS, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL,
        type_name=".inference.ModelVersionPolicy.All", oneof_index=0,
    )  # fmt: skip
    types = next(enum for enum in file.enum_type if enum.name == "DataType")
    for name, number in _TENSORFLOW_TYPES.items():
        types.value.add(name=name, number=ADLIK_NUMBERS + number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


_EXTENDED = _extended_class()


def parse_pbtxt(text: str, *, source: str, model_name: str, is_named_elsewhere: bool = False) -> ParsedConfig:
    """Reads a config.pbtxt in Triton's or Adlik's form.

    Args:
        text: The file's content.
        source: Short name of the file for messages, such as `digits/config.pbtxt`.
        model_name: The model folder's name, which `name` must equal if it is written.
        is_named_elsewhere: Whether `model_name` is the operator's choice, so that the file's `name` is ignored.

    Raises:
        ConfigError: anything unknown, contradictory, out of range or not supported by this server; lists all problems.
    """
    tree = parse_tree(text, source=source)
    return read_tree(tree, source=source, model_name=model_name, first_line=1, is_named_elsewhere=is_named_elsewhere)


def empty_config(model_name: str) -> ParsedConfig:
    """The configuration of a model without config.pbtxt: every value comes from the model file."""
    return ParsedConfig(
        name=model_name,
        version_policy=LatestVersions(),
        backend="",
        platform="",
        message=pb.ModelConfig(name=model_name),
        source=f"{model_name} (no config.pbtxt)",
    )


def read_tree(tree: Block, *, source: str, model_name: str, first_line: int | None, is_named_elsewhere: bool = False) -> ParsedConfig:
    """The configuration in `tree`; `first_line` None: the source is JSON, which has no lines.

    Raises:
        ConfigError: as `parse_pbtxt`.
    """
    lines: dict[str, int | None] = {}
    report = Report(source, lines, first_line=first_line)
    extended = new_message()
    parents = field_parents(extended.DESCRIPTOR)
    binder = Binder(report, lines, is_json=first_line is None, enum_bound=ADLIK_NUMBERS, parents=parents)
    binder.fill(tree, extended)
    report.raise_if_any()
    message, form = to_triton(extended, binder.numeric_enums, report)
    if "name" not in lines or is_named_elsewhere:
        message.name = model_name
    check_config(message, model_name, report)
    check_unsupported(message, report)
    if is_ensemble(message):
        check_ensemble(message, report)
    report.raise_if_any()
    return _parsed(message, form, report, lines, source, first_line)


def _parsed(
    message: pb.ModelConfig, form: AdlikForm, report: Report, lines: Mapping[str, int | None], source: str, first_line: int | None
) -> ParsedConfig:
    return ParsedConfig(
        name=message.name,
        version_policy=NoVersions() if form.serves_nothing else _version_policy(message.version_policy),
        backend=message.backend,
        platform=message.platform,
        remarks=tuple(report.warnings),
        is_adlik=form.is_adlik,
        max_enqueued_batches=form.max_enqueued_batches,
        message=message,
        source=source,
        lines=lines,
        first_line=first_line,
        ensemble=read_ensemble(message),
    )


def _version_policy(policy: pb.ModelVersionPolicy) -> VersionPolicy:
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return AllVersions()
    if choice == "specific":
        return SpecificVersions(tuple(sorted(set(policy.specific.versions))))
    return LatestVersions(policy.latest.num_versions if choice == "latest" else 1)


#: An unterminated string extends to the end: a search for its end from each of its quotes would take quadratic time.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


class _Number(str):
    """A number as its digits: the JSON parser never converts it, so that a hostile number costs nothing."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """The members of a JSON object, as a type distinct from arrays; a dict would hide duplicates."""

    __slots__ = ()


def parse_config_json(text: str, *, model_name: str) -> ParsedConfig:
    """Reads the `config` parameter of a load.

    Raises:
        ConfigError: not JSON, too large, too deep, or wrong as in `parse_pbtxt`; the problems have no line.
    """
    source = f"{model_name} (config of the load request)"

    def fail(message: str) -> NoReturn:
        raise ConfigError([Problem.of(source, None, "(top level)", message)])

    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        fail(f"longer than {MAX_TEXT_BYTES} bytes")
    if _depth(text) > MAX_DEPTH:
        fail(f"nested deeper than {MAX_DEPTH}")
    try:
        value = json.loads(text, object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except json.JSONDecodeError as error:
        fail(f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})")
    if not isinstance(value, _Object):
        fail("takes a JSON object")
    return replace(read_tree(_block(value), source=source, model_name=model_name, first_line=None), is_sent=True)


def _depth(text: str) -> int:
    deepest = depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match.group() in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match.group() in "]}":
            depth -= 1
    return deepest


def _block(members: _Object) -> Block:
    return Block(tuple(_entry(name, value) for name, value in members if value is not None), None)


def _entry(name: str, value: Any) -> Entry:
    if isinstance(value, list) and not isinstance(value, _Object):
        return Entry(name, tuple(_value(item) for item in value), is_list=True, line=None)
    return Entry(name, (_value(value),), is_list=False, line=None)


def _value(value: Any) -> Value:
    if isinstance(value, _Object):
        return _block(value)
    if isinstance(value, bool):
        return Scalar(ScalarKind.WORD, "true" if value else "false", None)
    if isinstance(value, _Number):
        return Scalar(ScalarKind.NUMBER, str(value), None)
    if isinstance(value, str):
        return Scalar(ScalarKind.STRING, value, None)
    # null or a nested list: no field accepts either, and the binder reports it
    return Scalar(ScalarKind.WORD, "null" if value is None else "a list within a list", None)
