"""The runs after which memory is released."""

import numpy as np

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.memory_peaks import LARGE_BYTES, PeakTracker
from stoker.backends.onnx.session import OnnxInstance

MIB = 1 << 20


def test_rare_large_run_is_a_spike_and_a_usual_one_is_not():
    peaks = PeakTracker()
    assert [peaks.gives_back(MIB) for _ in range(50)] == [False] * 50
    assert peaks.gives_back(64 * MIB)
    assert peaks.gives_back(MIB), "the outputs of the large run were still held when it ended"
    assert not peaks.gives_back(MIB)


def test_small_runs_are_never_spikes():
    peaks = PeakTracker()
    assert not peaks.gives_back(LARGE_BYTES)
    assert PeakTracker().gives_back(LARGE_BYTES + 1), "the first run of all is unusual too"


def test_repeated_large_runs_become_usual():
    peaks = PeakTracker()
    found = [peaks.gives_back(64 * MIB) for _ in range(20)]
    assert found[0]
    assert not any(found[4:])


class Session:
    """Replaces a session of ONNX Runtime: returns its input, and records which runs must release memory."""

    def __init__(self):
        self.shrinking = []

    def run(self, names, feeds, options):
        entry = "memory.enable_memory_arena_shrinkage"
        self.shrinking.append(options is not None and options.get_run_config_entry(entry) == "cpu:0")
        return [feeds["x"]]


def test_only_a_spike_and_the_run_after_it_release_memory():
    session = Session()
    specs = TensorSpec("x", DataType.FP32, (-1,)), TensorSpec("y", DataType.FP32, (-1,))
    instance = OnnxInstance(session, ModelSignature(specs[:1], specs[1:], 4), static_batch_size=None, shrink_arena=False)
    for size in (1, 2 * LARGE_BYTES // 4, 1, 1):
        instance.execute({"x": np.zeros((1, size), np.float32)}, ["y"])
    assert session.shrinking == [False, True, True, False]
