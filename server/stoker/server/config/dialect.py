"""The one schema that both Triton's and Adlik's config.pbtxt are read by, and the translation of what was read into Triton's form.

Adlik's configuration shares most names with Triton's. What it has beyond them is added to a private copy of the schema: a few fields, and
TensorFlow's names of the element types. So either form, and an unambiguous mixture, is read by the same code with the same error messages.

The forms differ in one meaning: Adlik batches every model, Triton only those with a scheduler. `AdlikForm.is_adlik` says which one holds.
"""

from dataclasses import dataclass

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from stoker.server.config.report import Report
from stoker.server.pb import model_config_pb2 as pb

#: Numbers of what is Adlik's alone start here; `1000 + n` is TensorFlow's name for Triton's element type `n`.
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
#: Platforms that only Adlik's configurations name so (`tensorrt_plan` is both's).
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
    """What a configuration says beyond Triton's fields.

    Attributes:
        is_adlik: Whether Adlik's meaning holds: every model with a max_batch_size is batched.
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
    """Takes a message of the extended schema apart into Triton's form and the rest; notes contradictions between the two forms."""
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
        # Kept where a backend, and a client of the model's configuration, can read it.
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
    """Whether something in the (already renamed) message is Triton's alone."""
    tensors = [*message.input, *message.output]  # type: ignore[attr-defined]
    return any(field.name not in _SHARED_FIELDS for field, _ in message.ListFields()) or any(tensor.data_type for tensor in tensors)


def _rename_types(message: Message) -> bool:
    """Replaces TensorFlow's element types by Triton's everywhere below `message`; whether there were any."""
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
