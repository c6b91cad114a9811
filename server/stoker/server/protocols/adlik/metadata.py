"""A model's configuration in Adlik's form, and the state of its versions."""

from collections.abc import Iterable

from stoker.server.codecs.tensor_proto import NUMBERS
from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy
from stoker.server.core.state import IndexEntry, ModelDescription, VersionState
from stoker.server.pb import model_config_pb2 as triton_pb
from stoker.server.pb.adlik import model_pb2 as pb

_STATES = {
    VersionState.NEW: pb.MODEL_LOADING,
    VersionState.LOADING: pb.MODEL_LOADING,
    VersionState.READY: pb.MODEL_READY,
    VersionState.DRAINING: pb.MODEL_UNLOADING,
    VersionState.UNLOADED: pb.MODEL_UNAVAILABLE,
    VersionState.FAILED: pb.MODEL_UNAVAILABLE,
}
_UINT32_MAX = (1 << 32) - 1
_INT32_MAX = (1 << 31) - 1
#: Adlik's instances run on CPUs or GPUs; what runs elsewhere is left to the platform.
_KINDS = {"KIND_CPU": pb.ModelInstanceGroup.KIND_CPU, "KIND_GPU": pb.ModelInstanceGroup.KIND_GPU}


def config_message(description: ModelDescription) -> pb.ModelConfigProto:
    """The completed configuration of a served version in Adlik's form."""
    config, written = description.config, triton_pb.ModelConfig.FromString(description.config.wire)
    message = pb.ModelConfigProto(
        name=config.name,
        platform=config.platform,
        platform_version=config.parameters.get("platform_version", ""),
        version_policy=_policy(config.version_policy),
        max_batch_size=config.signature.max_batch_size,
        algorithm=config.parameters.get("algorithm", ""),
    )
    formats = {tensor.name: triton_pb.ModelInput.Format.Name(tensor.format) for tensor in written.input}
    for spec in config.signature.inputs:
        layout = pb.ModelInput.Format.Value(formats.get(spec.name, "FORMAT_NONE"))
        message.input.add(name=spec.name, data_type=NUMBERS[spec.datatype], format=layout, dims=spec.dims)
    for spec in config.signature.outputs:
        labels = config.label_files.get(spec.name, "")
        message.output.add(name=spec.name, data_type=NUMBERS[spec.datatype], dims=spec.dims, label_filename=labels)
    for group in config.instance_groups:
        kind = _KINDS.get(group.kind, pb.ModelInstanceGroup.KIND_AUTO)
        message.instance_group.add(name=group.name, count=group.count, gpus=group.gpus, kind=kind)
    if (batching := config.dynamic_batching) is not None:
        enqueued = config.max_enqueued_requests // max(1, config.signature.max_batch_size)
        message.dynamic_batching.SetInParent()
        message.dynamic_batching.preferred_batch_size.extend(batching.preferred_batch_sizes)
        message.dynamic_batching.max_queue_delay_microseconds = min(batching.max_queue_delay_us, _INT32_MAX)
        message.dynamic_batching.max_enqueued_batches = min(enqueued, _INT32_MAX)
    return message


def version_states(entries: Iterable[IndexEntry], version: int | None) -> dict[int, pb.ModelVersionStatus]:
    """The state of each version (None: all); the message has no room for numbers of more than 32 bits, which are left out."""
    return {
        entry.version: pb.ModelVersionStatus(ready_state=_STATES[entry.state])
        for entry in entries
        if entry.version is not None and entry.state is not None and version in (None, entry.version) and entry.version <= _UINT32_MAX
    }


def _policy(policy: VersionPolicy) -> pb.VersionPolicyProto:
    match policy:
        case LatestVersions(count):
            return pb.VersionPolicyProto(latest=pb.VersionPolicyProto.Latest(num_versions=count))
        case AllVersions():
            return pb.VersionPolicyProto(all=pb.VersionPolicyProto.All())
        case SpecificVersions(versions):
            return pb.VersionPolicyProto(specific=pb.VersionPolicyProto.Specific(versions=versions))
        case NoVersions():
            return pb.VersionPolicyProto(none=getattr(pb.VersionPolicyProto, "None")())
