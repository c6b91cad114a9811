"""The completed configuration as clients and people see it: the message that GetModelConfig answers, and config.pbtxt text."""

from google.protobuf import text_format

from stoker.server.core.model_config import ModelConfig
from stoker.server.pb import model_config_pb2 as pb


def normalised(message: pb.ModelConfig, backend: str, platform: str, model_filename: str, max_enqueued_requests: int) -> pb.ModelConfig:
    """A copy of a completed message with everything written out that Triton writes out, so that clients find it.

    `max_enqueued_requests` (0: none) is Adlik's bound of the queue, said in Triton's words.
    """
    full = pb.ModelConfig()
    full.CopyFrom(message)
    full.backend = backend
    full.platform = platform
    full.default_model_filename = model_filename
    if not full.HasField("version_policy"):
        full.version_policy.latest.num_versions = 1
    if full.HasField("dynamic_batching"):
        if full.max_batch_size and not full.dynamic_batching.preferred_batch_size:
            full.dynamic_batching.preferred_batch_size.append(full.max_batch_size)
        if max_enqueued_requests:
            full.dynamic_batching.default_queue_policy.max_queue_size = min(max_enqueued_requests, (1 << 32) - 1)
    full.optimization.input_pinned_memory.SetInParent()
    full.optimization.output_pinned_memory.SetInParent()
    return full


def to_pbtxt(config: ModelConfig) -> str:
    """The completed configuration as the text of a config.pbtxt that says all of it."""
    message = pb.ModelConfig.FromString(config.wire)
    # Written out for clients, but without effect in a file.
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if not getattr(message.optimization, name).enable:
            message.optimization.ClearField(name)
    if not message.optimization.ListFields():
        message.ClearField("optimization")
    return text_format.MessageToString(message, use_short_repeated_primitives=True, as_utf8=True)
