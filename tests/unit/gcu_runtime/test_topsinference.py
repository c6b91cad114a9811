"""The runtime under the vendor's names: devices, memory, streams, engines, errors."""

import logging
import threading

import numpy as np
import pytest
import TopsInference as tops  # noqa: N813 - the name is the vendor's
from TopsInference.owned_devices import find_device

from stoker.backends.gcu.executable import write_executable
from stoker.backends.gcu.runtime import Status, StatusError, StreamTimeout
from tests.fakes.gcu_executables import scaled

HOST, DEVICE = tops.TIF_ENGINE_RSC_IN_HOST_OUT_HOST, tops.TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE


@pytest.fixture
def card():
    """All of card 0 is this thread's."""
    with tops.device(0, -1) as handle:
        yield handle


@pytest.fixture
def engine(card, tmp_path):
    """`scaled`, for 1 and 4 samples."""
    path = tmp_path / "model.exec"
    write_executable(path, scaled())
    return tops.load(str(path))


def rows(count):
    return np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)


def expected(x):
    return x * np.array([1, 2, 3], np.float32)


def test_block_owns_a_device_and_releases_it():
    with tops.device(0, [0, 2]) as outer:
        assert find_device() is outer
        with tops.device(0, 1) as inner:
            assert find_device() is inner
        assert inner.is_released
        assert find_device() is outer
    assert find_device() is None
    with pytest.raises(StatusError, match=r"mem_alloc: no device is set; call set_device\(card, clusters\) first") as caught:
        tops.mem_alloc(4)
    assert caught.value.status is Status.TIF_NOT_INITIALIZED


def test_handle_is_released_once():
    handle = tops.set_device(0, [0])
    assert tops.release_device(handle)
    for wrong in (handle, None, 7):
        with pytest.raises(StatusError, match="release_device takes what set_device gave, once"):
            tops.release_device(wrong)  # type: ignore[arg-type]


def in_a_thread(function):
    """The result or exception of `function` on another thread."""
    outcome = []

    def run():
        try:
            outcome.append(function())
        except StatusError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return outcome[0]


def test_other_threads_share_the_main_threads_device_and_may_own_others(card):
    def own():
        with tops.device(0, 4) as mine:
            return find_device() is mine and mine.clusters == (4,)

    assert in_a_thread(find_device) is card
    assert in_a_thread(own)
    assert find_device() is card


def test_device_of_a_thread_is_not_the_main_threads_and_ends_with_the_thread():
    left = in_a_thread(lambda: tops.set_device(0, 5))
    assert isinstance(in_a_thread(lambda: tops.mem_alloc(4)), StatusError)
    assert find_device() is None
    assert not left.is_released
    with tops.device(0, 0):
        assert left.is_released


def test_memory_round_trips_through_the_device(card):
    host, back = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    pointer = tops.mem_alloc(host.size * host.itemsize)
    assert tops.mem_h2d_copy(host, pointer, host.nbytes)
    assert tops.mem_d2h_copy(pointer, back, back.nbytes)
    np.testing.assert_array_equal(back, host)
    tail = np.zeros(2, np.float32)
    tops.mem_copy(pointer + 16, tail, 8, tops.TIF_MEMCPY_DEVICE_TO_HOST)
    assert tail.tolist() == [4, 5]
    tops.mem_copy(tail, pointer, 8, tops.TIF_MEMCPY_HOST_TO_DEVICE)
    stream = tops.create_stream()
    tops.mem_copy_async(pointer, back, 12, tops.TIF_MEMCPY_DEVICE_TO_HOST, stream)
    tops.mem_copy_async(host, pointer, 4, tops.TIF_MEMCPY_HOST_TO_DEVICE, stream)
    assert tops.synchronize_stream(stream)
    assert back.tolist() == [4, 5, 2, 3, 4, 5]
    assert tops.destroy_stream(stream)
    assert tops.mem_free(pointer)
    assert card.hbm_used_bytes == 0


def test_memory_copies_are_checked(card):
    host, pointer = np.zeros(4, np.float32), tops.mem_alloc(16)
    stream = tops.create_stream()
    for call, says in (
        (lambda: tops.mem_alloc(0), "at least one byte"),
        (lambda: tops.mem_alloc(17 << 30), "bytes of HBM"),
        (lambda: tops.mem_alloc("4"), "mem_alloc: a number of bytes is needed, not '4'"),  # type: ignore[arg-type]
        (lambda: tops.mem_h2d_copy(host, pointer, 20), "20 bytes of host memory are to be copied; it has 16"),
        (lambda: tops.mem_h2d_copy(host, pointer + 8, 16), "bytes 8 to 24 are outside the buffer of 16 bytes"),
        (lambda: tops.mem_h2d_copy(host, 12345, 16), "no device memory is allocated at 0x3039"),
        (lambda: tops.mem_h2d_copy(host, host, 16), "an address from mem_alloc is needed, not ndarray"),  # type: ignore[arg-type]
        (lambda: tops.mem_free(pointer + 4), "lies 4 bytes inside a block"),
        (lambda: tops.mem_copy(host, pointer, 16, 5), "5 is no kind of copy"),
        (lambda: tops.mem_copy_async(host, pointer, 16, 0, None), "a stream from create_stream is needed, not NoneType"),  # type: ignore[arg-type]
    ):
        with pytest.raises(StatusError, match=says):
            call()
    tops.destroy_stream(stream)
    with pytest.raises(StatusError, match="is destroyed already"):
        tops.destroy_stream(stream)
    tops.mem_free(pointer)
    for call in (lambda: tops.mem_free(pointer), lambda: tops.mem_d2h_copy(pointer, host, 4)):
        with pytest.raises(StatusError, match="was it freed"):
            call()


def test_memory_of_a_released_device_cannot_be_used():
    with tops.device(0, 0):
        pointer = tops.mem_alloc(16)
    with tops.device(0, 0), pytest.raises(StatusError, match=r"cannot be used any more|was it freed"):
        tops.mem_d2h_copy(pointer, np.zeros(4, np.float32), 16)


def test_run_accepts_lists_and_dicts_and_fills_the_outputs(engine):
    x, made = rows(5), list[np.ndarray]()
    assert engine.run([x], made, HOST)
    np.testing.assert_array_equal(made[0], expected(x))
    by_name: list[np.ndarray] = []
    engine.run([{"x": x}], by_name)
    given = [np.zeros((5, 3), np.float32), np.zeros(5, np.int64)]
    engine.run({"x": x}, given)
    for one, other, own in zip(made, by_name, given, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, own)


def test_run_accepts_device_memory_for_complete_batches(engine, card):
    x, y = rows(4), np.zeros((4, 3), np.float32)
    pointers = [tops.mem_alloc(size) for size in (48, 48, 32)]
    tops.mem_h2d_copy(x, pointers[0], 48)
    engine.run(pointers[:1], pointers[1:], DEVICE)
    tops.mem_d2h_copy(pointers[1], y, 48)
    np.testing.assert_array_equal(y, expected(x))
    stream = tops.create_stream()
    tops.mem_h2d_copy(x[::-1].copy(), pointers[0], 48)
    engine.run(pointers[:1], pointers[1:], DEVICE, stream)
    tops.mem_copy_async(pointers[1], y, 48, tops.TIF_MEMCPY_DEVICE_TO_HOST, stream)
    tops.synchronize_stream(stream)
    np.testing.assert_array_equal(y, expected(x[::-1]))
    small, before = [tops.mem_alloc(size) for size in (12, 12, 8)], card.figures.samples
    engine.run(small[:1], small[1:], DEVICE)
    assert card.figures.samples - before == 1


def test_run_with_batch_accepts_the_samples_of_each_input(engine):
    x = rows(6)
    whole, single = np.zeros((6, 3), np.float32), [np.zeros((), np.int64) for _ in range(6)]
    future = engine.run_with_batch(6, [[x[0:1], *x[1:]]], [whole, single], HOST)
    assert future.done()
    assert future.status() is Status.TIF_SUCCESS
    y, n = future.get()
    np.testing.assert_array_equal(y, expected(x))
    np.testing.assert_array_equal(whole, y)
    assert [int(each) for each in single] == n.tolist() == x.argmax(axis=1).tolist()
    np.testing.assert_array_equal(engine.run_with_batch(6, [x]).get()[0], y)


def test_run_with_batch_on_a_stream_returns_the_addresses(engine):
    x, y = rows(3), np.zeros((3, 3), np.float32)
    pointers = [tops.mem_alloc(size) for size in (36, 64, 24)]
    tops.mem_h2d_copy(x, pointers[0], 36)
    stream = tops.create_stream()
    future = engine.run_with_batch(3, pointers[:1], [pointers[1] + 28, pointers[2]], DEVICE, stream)
    assert future.get(30) == [pointers[1] + 28, pointers[2]]
    assert future.wait()
    tops.mem_d2h_copy(pointers[1] + 28, y, 36)
    np.testing.assert_array_equal(y, expected(x))
    assert engine.run_with_batch(3, pointers[:1], pointers[1:], DEVICE).done()


def test_runs_by_run_v2_are_concurrent_on_separate_streams(engine):
    xs = [rows(count) for count in range(1, 13)]
    streams = [tops.create_stream() for _ in xs]
    futures = [engine.runV2([x], stream) for x, stream in zip(xs, streams, strict=True)]
    for x, future in zip(xs, futures, strict=True):
        np.testing.assert_array_equal(future.get(30)[0], expected(x))
    np.testing.assert_array_equal(engine.runV2({"x": xs[4]}).get()[0], expected(xs[4]))


def test_unfinished_future_times_out(engine):
    stream, gate = tops.create_stream(), threading.Event()

    def wait(*_: object) -> None:
        gate.wait(30)

    stream.submit(wait, [])
    future = engine.runV2([rows(1)], stream)
    assert not future.done()
    with pytest.raises(StreamTimeout):
        future.get(0)
    gate.set()
    assert future.status() is Status.TIF_SUCCESS


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda e: e.run([rows(2)], [], HOST, tops.create_stream()), "runs on buffers of the host cannot be queued"),
        (lambda e: e.run_with_batch(1, [rows(1)], None, HOST, tops.create_stream()), "cannot be queued on a stream"),
        (lambda e: e.run([rows(2)], [], 2), "2 is no buffer type"),
        (lambda e: e.run([rows(2)], [], DEVICE), "an address from mem_alloc is needed, not ndarray"),
        (lambda e: e.run(rows(2), [], HOST), "a list of arrays or a dict is needed, not ndarray"),
        (lambda e: e.run([[1, 2, 3]], [], HOST), "input 0: an array is needed, not list"),
        (lambda e: e.run([{"z": rows(2)}], [], HOST), "there is no input 'z', input 'x' is missing; inputs are x"),
        (lambda e: e.run([rows(2)], [np.zeros((2, 3), np.float32)], HOST), "expected an empty list or one of 2 arrays"),
        (lambda e: e.run([rows(2)], [np.zeros((2, 3)), np.zeros(2, np.int64)], HOST), "output 'y' is float32, not float64"),
        (lambda e: e.run([rows(2)], [np.zeros((3, 3), np.float32), np.zeros(2, np.int64)], HOST), r"has shape \[3, 3\]; expected \[2, 3\]"),
        (lambda e: e.run_with_batch(2, [rows(3)]), "input 'x': 3 samples are given, 2 are asked for"),
        (lambda e: e.run_with_batch("2", [rows(2)]), "sample_nums must be a number, not '2'"),
        (lambda e: e.run_with_batch(2, [rows(2), rows(2)]), "2 lists of samples for 1 inputs"),
        (lambda e: e.run_with_batch(1, [[np.zeros(4, np.float32)]]), r"sample 0 has shape \[4\]; expected \[1, 3\] or \[3\]"),
        (lambda e: e.run_with_batch(1, [tops.mem_alloc(12)], None, DEVICE), "output_list must hold addresses"),
        (lambda e: e.runV2([rows(2)], "stream"), "a stream from create_stream is needed, not str"),
        (lambda e: e.get_input_name(1), "there is no input 1; there are 1"),
        (lambda e: e.load_tops_executable("/nowhere.exec"), "there is no file '/nowhere.exec'"),
        (lambda e: e.save_executable(__file__ + "/model.exec"), "model.exec"),
        (lambda e: tops.PyEngine().run([rows(1)], []), "the engine has no executable"),
    ],
)
def test_invalid_call_is_raised_and_recorded(engine, call, says):
    manager = tops.create_error_manager()
    with pytest.raises(StatusError, match=says) as caught:
        call(engine)
    assert manager.get_error_count() == 1
    assert manager.get_error_status(0) is caught.value.status
    assert manager.get_error_msg(0) == caught.value.message


def test_error_manager_reports_and_clears(caplog):
    manager = tops.create_error_manager()
    with pytest.raises(StatusError):
        tops.set_device(0, 6)
    assert manager.get_error_status(0) == tops.TIF_MORE_CLUSTER_APPLIED
    with caplog.at_level(logging.ERROR):
        assert manager.report_status(0)
    assert "there is no cluster 6" in caplog.text
    assert manager.clear()
    assert manager.get_error_count() == 0
    with pytest.raises(StatusError, match="there is no error 0"):
        manager.get_error_msg(0)


def test_failed_run_on_a_stream_is_recorded_and_the_stream_continues(engine, card, monkeypatch):
    from stoker.backends.gcu.runtime import engine as engine_module

    stream, manager = tops.create_stream(), tops.create_error_manager()
    monkeypatch.setattr(engine_module.Engine, "_run", fail)
    future = engine.runV2([rows(1)], stream)
    with pytest.raises(StatusError, match="broken on purpose"):
        future.get(30)
    assert future.status() is Status.TIF_ENGINE_RUN_FAILED
    monkeypatch.undo()
    assert manager.get_error_count() == 1
    assert engine.runV2([rows(1)], stream).get(30)[0].shape == (1, 3)


def fail(*_):
    raise StatusError(Status.TIF_ENGINE_RUN_FAILED, "broken on purpose")


def test_engine_describes_itself(engine):
    assert (engine.get_input_num(), engine.get_output_num()) == (1, 2)
    assert (engine.get_input_name(0), engine.get_output_name(1)) == ("x", "n")
    assert (engine.get_input_shape(0), engine.get_output_shape(1)) == ([4, 3], [4])
    assert (engine.get_input_data_type(0), engine.get_output_data_type(1)) == (tops.DT_FLOAT32, tops.DT_INT64)
    assert engine.get_device_memory_size() == 4096 + 12


def test_engine_moves_with_its_thread_between_devices(tmp_path):
    write_executable(tmp_path / "model.exec", scaled())
    engine, x = tops.load(tmp_path / "model.exec"), rows(2)
    for cluster in (0, 3):
        with tops.device(0, cluster) as handle:
            assert engine.runV2([x]).get()[0].tolist() == expected(x).tolist()
            assert handle.hbm_used_bytes == engine.get_device_memory_size()
            saved = tmp_path / f"{cluster}.exec"
            assert engine.save_executable(saved)
    assert saved.read_bytes() == (tmp_path / "model.exec").read_bytes()
    with pytest.raises(StatusError, match="runV2: no device is set"):
        engine.runV2([x])


def test_another_executable_replaces_the_first(engine, card, tmp_path):
    engine.runV2([rows(1)]).get()
    write_executable(tmp_path / "other.exec", scaled([2], scale=[5, 5, 5], workspace_bytes=100))
    assert engine.load_tops_executable(tmp_path / "other.exec")
    assert engine.runV2([np.ones((1, 3), np.float32)]).get()[0].tolist() == [[5, 5, 5]]
    assert card.hbm_used_bytes == 112


def test_version_is_text_and_numbers():
    assert tops.__version__.endswith("simulated)")
    assert tops.version()._fields == ("major", "minor", "patch", "tweak")
    assert tops.TIFStatus.TIF_SUCCESS == 0
    assert all(hasattr(tops, name) for name in tops.__all__)
