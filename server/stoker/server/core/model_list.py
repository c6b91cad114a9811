"""A list of models by name and folder: what TensorFlow Serving's `--model_config_file` and `HandleReloadConfigRequest` hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.server.core.model_config import VersionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One model of the list.

    Attributes:
        name: What clients call it; its folder may be called otherwise.
        base_path: The folder that holds its version folders.
        version_policy: Which versions to serve; None: what config.pbtxt says, or the highest.
        version_labels: Versions by label.
        platform: What the version folders hold, in the words of config.pbtxt; empty: to be told from the files.
    """

    name: str
    base_path: Path
    version_policy: VersionPolicy | None = None
    version_labels: Mapping[str, int] = field(default_factory=dict)
    platform: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingDefaults:
    """How models are batched whose configuration leaves it open.

    Attributes:
        max_batch_size: Rows of a batch, where the model file sets no bound; None: the server's own default.
        max_queue_delay_us: How long a request waits for a fuller batch.
        preferred_batch_sizes: Rows worth waiting for.
        max_enqueued_batches: Bound of the queue, in batches; 0: the server's own.
    """

    max_batch_size: int | None = None
    max_queue_delay_us: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_enqueued_batches: int = 0
