"""Constants of the cost model, each with its source.

*Published* figures of the card stand in `stoker.backends.gcu.hardware`. *Fitted* ones are adjusted together against the published latency
and throughput tables by `python -m benchmarks.gcu_model --fit`; none belongs to a model, a batch size or a row. *Assumed* ones say so.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class CostConstants:
    """What decides how long an operator takes, beside the card's published figures.

    All published latencies are of fp32. In fp16 the same shares of its own peak are assumed, which nothing published confirms.

    Attributes:
        launch_s: Fitted. Seconds that each launched kernel takes beyond its data: fetching its descriptor, filling and draining the cores.
        convolution_efficiency: Fitted. Share of the peak rate that convolutions reach.
        product_efficiency: Fitted. Share of the peak rate that matrix products reach.
        hbm_efficiency: Fitted. Share of its part of the HBM bandwidth that a cluster reaches.
        run_overhead_s: Assumed. Seconds of a run beyond its kernels: the host's command and the completion it waits for.
    """

    launch_s: float = 30.2e-6
    convolution_efficiency: float = 0.904
    product_efficiency: float = 0.249
    hbm_efficiency: float = 0.584
    run_overhead_s: float = 50e-6


FITTED: Final = CostConstants()

CODE_BYTES: Final = 4 << 20
"""HBM that the executable's code takes for each compiled batch. Assumed: kernels of a network are a few megabytes."""
