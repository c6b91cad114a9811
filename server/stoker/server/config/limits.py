"""Bounds of a configuration, all in one place: what is beyond them is a mistake or an attack, never a model."""

#: Bytes of a config.pbtxt or of a JSON override.
MAX_TEXT_BYTES = 1 << 20
#: Blocks within blocks; the deepest field of ModelConfig lies at 7.
MAX_DEPTH = 32
#: Problems collected before reading stops.
MAX_PROBLEMS = 50
#: Characters of a problem's field, and of its message: both may repeat what the configuration says.
MAX_FIELD_LENGTH, MAX_MESSAGE_LENGTH = 256, 2048

MAX_BATCH_SIZE = 65_536
#: Inputs, or outputs, of one model.
MAX_TENSORS = 1024
#: Dimensions of one tensor, batch dimension left out (numpy allows 64 with it).
MAX_RANK = 32
#: Elements of one row of a tensor: no gRPC message carries more.
MAX_ROW_ELEMENTS = (1 << 31) - 1
#: Instances of one model version, over all its groups.
MAX_INSTANCES = 64
#: Priority levels of one queue: each has a queue of its own.
MAX_PRIORITY_LEVELS = 1000
MAX_WARMUPS = 100
#: All inputs of one warm-up sample together, in bytes: few characters of a configuration make a sample of any size.
MAX_WARMUP_BYTES = 1 << 30
#: Runs of one warm-up sample.
MAX_WARMUP_COUNT = 1000
#: Sequences in progress of one instance. Each keeps its states in memory, even while its client says nothing.
MAX_CANDIDATES = 65_536
#: One state of one sequence, in bytes, where it begins.
MAX_STATE_BYTES = 1 << 30

#: Batching inferred from a model file that allows it uses this max_batch_size. Triton's ONNX backend takes 4, which refuses most first
#: requests; memory is committed for the rows that come, not for this bound.
DEFAULT_MAX_BATCH_SIZE = 32
