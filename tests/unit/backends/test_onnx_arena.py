"""Which runs give memory back."""

from backends.onnx.arena import LARGE_BYTES, Spikes

MIB = 1 << 20


def test_a_rare_large_run_is_a_spike_and_what_is_usual_is_not():
    spikes = Spikes()
    assert [spikes.is_one(MIB) for _ in range(50)] == [False] * 50
    assert spikes.is_one(64 * MIB)
    assert not spikes.is_one(MIB)


def test_small_runs_never_matter():
    spikes = Spikes()
    assert not spikes.is_one(LARGE_BYTES)
    assert Spikes().is_one(LARGE_BYTES + 1), "the first run of all is unusual too"


def test_what_stays_large_becomes_usual():
    spikes = Spikes()
    found = [spikes.is_one(64 * MIB) for _ in range(20)]
    assert found[0]
    assert not any(found[4:])
