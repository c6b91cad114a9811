"""`ModelFusionRunner`: runs fused executables by the names of a request alone, without an index."""

from dataclasses import dataclass
from typing import ClassVar

from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.runtime_config import RunnerType, RuntimeConfig


@dataclass(slots=True, kw_only=True)
class ModelFusionRunnerConfig(RuntimeConfig):
    """How a `ModelFusionRunner` runs."""

    runner_type: ClassVar[RunnerType] = RunnerType.MODEL_FUSION_RUNNER


class ModelFusionRunner(ModelRunner):
    """A `ModelRunner` that finds the sub-graph by the names of inputs and outputs, and checks each request against it.

    `ModelRunner` lets the device find out by a timeout that an input is missing, as the vendor's does. Here the request is refused at
    once. An index may be given all the same. `validate_io_params` has no say: what a request needs is what its sub-graph has.
    """

    _is_strict = True
