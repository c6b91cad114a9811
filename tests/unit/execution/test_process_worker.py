"""Supervised worker processes, played by the test: order, streams, cancellation, deaths, damage, hangs, restarts, closing."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.api.backend import Figure
from stoker.backends.api.errors import BackendFailed, DeadlineExceeded, LogLines, ModelLoadError, ServingError, Unavailable
from stoker.backends.api.rescheduling import Rescheduled
from stoker.backends.worker.channel import Message
from stoker.backends.worker.figures import figures_text
from stoker.backends.worker.process import WorkerProcess, exit_text
from stoker.backends.worker.protocol import CANCEL, CREDIT, CREDIT_STEP, CREDITS, DONE, FIGURES, FREED, RELEASE, RESPONSE, RUN
from stoker.backends.worker.segments import KEPT_BYTES, LEAST_BYTES
from stoker.server.execution.process_worker import IDLE_NS, LOOP_COPY_BYTES
from stoker.server.execution.restart_policy import FIRST_EJECTION_NS, MOST_DEATHS
from tests.fakes.fake_process import ITERATIVE, PATIENCE_S, STREAMS, FakeProcess, Rig, Sink, item, turn, until
from tests.fakes.process_facts import descriptors

Scenario = Callable[..., Coroutine[Any, Any, None]]


def on_loop(scenario: Scenario) -> Callable[..., None]:
    """Runs a test on an event loop."""

    @wraps(scenario)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(scenario(*arguments, **named))

    return run


async def kinds(process: FakeProcess) -> list[int]:
    """The kinds of all messages that have arrived at the process."""
    await turn()
    seen = []
    while (message := process.receive()) is not None:
        seen.append(message.kind)
    return seen


# -- batches


@on_loop
async def test_batch_returns_its_result():
    rig = Rig()
    assert (rig.worker.free_slots, rig.worker.outage, rig.worker.pid) == (1, "", 4711)
    number = rig.submit(item(rows=2), item(rows=1))
    assert rig.worker.free_slots == 0
    batch, items = await rig.batch()
    assert [each.rows for each in items] == [2, 1]
    rig.process.finish(batch, [2, 1], 7.0)
    await turn()
    (result,) = rig.results.by_work[number]
    assert [outcome["OUT"].shape for outcome in result.outcomes if not isinstance(outcome, ServingError)] == [(2, 2), (1, 2)]
    assert (result.infer_ns, result.output_ns, result.executions) == (2, 3, [3])
    assert rig.worker.free_slots == 1
    await rig.close()


@on_loop
async def test_results_are_delivered_in_the_order_of_the_batches():
    rig = Rig(depth=3)
    for value in range(3):
        rig.submit(item(value=value))
    numbers = [(await rig.batch())[0] for _ in range(3)]
    for at in (2, 1):
        rig.process.finish(numbers[at], [1], at)
    await turn()
    assert rig.results.order == []
    rig.process.finish(numbers[0], [1], 0)
    await turn()
    assert rig.results.order == [0, 1, 2]
    assert [rig.results.value(at) for at in range(3)] == [0.0, 1.0, 2.0]
    assert rig.worker.free_slots == 3
    await rig.close()


@on_loop
async def test_numbers_of_batches_wrap():
    rig = Rig(depth=2)
    rig.worker._numbers = 0xFFFFFFFE
    for value in range(4):
        number = rig.submit(item(value=value))
        batch, _ = await rig.batch()
        assert batch == (0xFFFFFFFF + value) & 0xFFFFFFFF
        rig.process.finish(batch, [1], value)
        await turn()
        assert rig.results.value(number) == value
    await rig.close()


@on_loop
async def test_large_batch_is_copied_outside_the_loop():
    rig = Rig()
    number = rig.submit(item(size=LOOP_COPY_BYTES // 4 + 1))
    batch, items = await rig.batch()
    assert items[0].inputs["IN"].shape == (1, LOOP_COPY_BYTES // 4 + 1)
    rig.process.finish(batch, [1], 5.0)
    await turn()
    assert rig.results.value(number) == 5.0
    await rig.close()


@on_loop
async def test_memory_of_large_batches_is_returned_when_the_channel_is_idle():
    rig = Rig()
    rig.submit(item(size=KEPT_BYTES // 4 + 1))
    batch, _ = await rig.batch()
    rig.process.finish(batch, [1])
    await turn()
    rig.timers.advance(IDLE_NS // 1000)
    assert RELEASE in await kinds(rig.process)
    await rig.close()


@on_loop
async def test_parameter_that_is_no_json_fails_only_its_batch():
    rig = Rig()
    number = rig.submit(item(parameters={"p": b"\xff"}))
    assert isinstance(rig.results.error(number), BackendFailed)
    assert rig.worker.free_slots == 1
    assert await kinds(rig.process) == []
    await rig.close()


@on_loop
async def test_host_without_memory_for_a_batch_fails_only_that_batch(monkeypatch):
    rig = Rig()

    def no_memory(*arguments: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rig.process.channel, "_segment", no_memory)
        number = rig.submit(item(size=10_000))
    assert "No space left" in rig.results.error(number).message
    assert rig.worker.free_slots == 1
    other = rig.submit()
    batch, _ = await rig.batch()
    rig.process.finish(batch, [1], 3.0)
    await turn()
    assert rig.results.value(other) == 3.0
    await rig.close()


@on_loop
async def test_message_that_finds_the_socket_full_is_sent_when_there_is_room():
    rig = Rig(depth=1, reads_requests=True)
    first = rig.submit()
    sent = 0
    while not rig.worker._unsent:
        rig.worker.cancel(rig.results.works[first], 0)
        sent += 1
        assert sent < 100_000
    # The process ends the batch before it reads the cancellations; the next batch waits behind them.
    batch, _ = await rig.batch()
    rig.process.finish(batch, [1], 1.0)
    received = sent_back = 0
    await turn()
    assert rig.results.value(first) == 1.0
    second = rig.submit()
    for _ in range(1000):
        if sent_back:
            break
        await turn()
        while (message := rig.process.receive()) is not None:
            received += message.kind == CANCEL
            if message.kind == RUN:
                rig.process.finish(message.number, [1], 2.0)
                sent_back += 1
    await turn()
    assert received == sent
    assert rig.results.value(second) == 2.0
    await rig.close()


@on_loop
async def test_batch_that_finds_no_free_segment_is_sent_when_one_is_free():
    rig = Rig(depth=12)
    numbers = [rig.submit(item(size=10_000, value=value)) for value in range(12)]
    done = 0
    while done < 12:
        found = rig.process.batch()
        if found is None:
            await turn()
            continue
        batch, items = found
        value = float(items[0].inputs["IN"][0, 0])
        del found, items
        rig.process.finish(batch, [1], value)
        done += 1
    await turn(30)
    assert [rig.results.value(number) for number in numbers] == list(map(float, range(12)))
    await rig.close()


@on_loop
async def test_freed_segments_are_reported_without_a_batch_to_carry_them():
    rig = Rig(depth=2, signature=STREAMS, reads_requests=True)
    sink = Sink()
    rig.submit(item(responses=sink))
    batch, _ = await rig.batch()
    for _ in range(30):
        rig.process.peer.send(RESPONSE, batch, 0, b'{"n":["OUT"],"b":[["<f4",[2500],0,10000]]}', 10_000, lambda memory: None)
        await turn()
        while sink.take():
            continue
        rig.process.receive()
    assert rig.process.peer.allocated_bytes <= 8 * LEAST_BYTES
    rig.process.end_stream(batch)
    await turn()
    await rig.close()


# -- streams and cancellation


@pytest.mark.slow
@on_loop
async def test_slow_reader_holds_at_most_the_credits():
    rig = Rig(depth=1, signature=STREAMS, reads_requests=True)
    sink = Sink()
    number = rig.submit(item(responses=sink))
    batch, _ = await rig.batch()
    credits, sent, total = CREDITS, 0, 10_000
    while len(sink.read) < total:
        while credits and sent < total:
            rig.process.respond(batch, sent)
            sent += 1
            credits -= 1
        await turn(CREDITS + 2)
        assert len(sink.waiting) <= CREDITS
        for _ in range(CREDIT_STEP):
            sink.take()
        while (message := rig.process.receive()) is not None:
            assert message.kind in (CREDIT, FREED)
            credits += CREDIT_STEP if message.kind == CREDIT else 0
        assert credits <= CREDITS
    assert sink.read == list(map(float, range(total)))
    assert sink.most <= CREDITS
    rig.process.end_stream(batch)
    await turn()
    assert len(rig.results.by_work[number]) == 1
    await rig.close()


@on_loop
async def test_each_request_of_a_batch_has_credits_of_its_own():
    rig = Rig(signature=ITERATIVE, reads_requests=True)
    sinks = [Sink(), Sink()]
    rig.submit(*(item(responses=sink) for sink in sinks))
    batch, items = await rig.batch()
    assert len(items) == 2
    for value in range(CREDITS):
        rig.process.respond(batch, value, 1)
    await turn(CREDITS + 2)
    assert [len(sink.waiting) for sink in sinks] == [0, CREDITS]
    for _ in range(CREDIT_STEP):
        sinks[1].take()
    messages = []
    while (message := rig.process.receive()) is not None:
        messages += [(message.number, message.index)] if message.kind == CREDIT else []
    assert messages == [(batch, 1)]
    rig.process.end_streams(batch, 2)
    await turn()
    await rig.close()


@on_loop
async def test_rescheduled_requests_of_a_batch_are_reported_by_place():
    rig = Rig(signature=ITERATIVE, reads_requests=True)
    number = rig.submit(item(responses=Sink()), item(responses=Sink()))
    batch, _ = await rig.batch()
    rig.process.end_streams(batch, 2, again=(1,))
    await turn()
    (result,) = rig.results.by_work[number]
    assert [isinstance(outcome, Rescheduled) for outcome in result.outcomes] == [False, True]
    await rig.close()


@on_loop
async def test_short_stream_does_not_wait_for_a_long_one():
    rig = Rig(depth=2, signature=STREAMS, reads_requests=True)
    rig.submit(item(responses=Sink()))
    rig.submit(item(responses=Sink()))
    rig.process.batch()
    short, _ = await rig.batch()
    rig.process.end_stream(short)
    await turn()
    assert rig.results.order == [1]
    assert rig.worker.free_slots == 1
    rig.process.die()
    await until(lambda: bool(rig.results.by_work[0]))
    await rig.close()


@on_loop
async def test_cancellation_reaches_the_model():
    rig = Rig(reads_requests=True)
    number = rig.submit(item(), item())
    rig.worker.cancel(rig.results.works[number], 1)
    first, second = rig.process.receive(), rig.process.receive()
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind, second.number, second.index) == (RUN, CANCEL, first.number, 1)
    rig.process.finish(first.number, [1, 1])
    await turn()
    rig.worker.cancel(rig.results.works[number], 0)  # too late
    assert await kinds(rig.process) == []
    await rig.close()


@on_loop
async def test_model_that_reads_no_request_gets_no_cancellation():
    rig = Rig()
    number = rig.submit()
    rig.worker.cancel(rig.results.works[number], 0)
    assert await kinds(rig.process) == [RUN]
    rig.process.die()
    await until(lambda: bool(rig.results.by_work[number]))
    await rig.close()


@on_loop
async def test_cancellation_of_a_batch_that_is_still_copied_arrives_after_it(monkeypatch):
    rig = Rig(signature=STREAMS, reads_requests=True)
    may_copy = threading.Event()
    send = rig.process.channel.send

    def send_later(kind: int, *arguments: Any, **named: Any) -> None:
        assert kind != RUN or may_copy.wait(PATIENCE_S)
        send(kind, *arguments, **named)

    monkeypatch.setattr(rig.process.channel, "send", send_later)
    number = rig.submit(item(size=LOOP_COPY_BYTES // 4 + 1, responses=Sink()))
    rig.worker.cancel(rig.results.works[number], 0)
    assert await kinds(rig.process) == []
    may_copy.set()
    seen: list[int] = []

    def both() -> bool:
        while (message := rig.process.receive()) is not None:
            seen.append(message.kind)
        return len(seen) >= 2

    await until(both)
    assert seen == [RUN, CANCEL]
    rig.process.end_stream(1)
    await turn()
    await rig.close()


# -- deaths


@pytest.mark.parametrize("has_exit_descriptor", [False, True])
@pytest.mark.parametrize(
    ("code", "how"),
    [(-11, "it was ended by signal SIGSEGV"), (-9, "signal SIGKILL"), (-6, "SIGABRT"), (3, "exit code 3"), (0, "exit code 0")],
)
@on_loop
async def test_death_costs_the_batch_in_execution_one_error_that_names_it(code, how, has_exit_descriptor, caplog):
    rig = Rig(has_exit_descriptor=has_exit_descriptor)
    number = rig.submit(item(), item(), item())
    rig.process.batch()
    rig.process.die(code)
    await until(lambda: bool(rig.results.by_work[number]))
    error = rig.results.error(number)
    assert isinstance(error, Unavailable)
    assert how in error.message
    assert "its last line" not in error.message
    assert error.retry_after_s is None  # clients would repeat what has ended the process
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage() == f"the worker process of model 'm' version 3 has ended: {exit_text(code)}; its last lines:"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LogLines)
    assert record.exc_info[1].lines == ("its last line",)
    assert error.is_logged
    assert rig.deaths == 1
    assert rig.worker.free_slots == 0
    assert how in rig.worker.outage
    assert "'m_0'" in rig.worker.outage
    await rig.restart()
    assert rig.worker.outage == ""
    assert rig.worker.free_slots == 1
    again = rig.submit()
    batch, _ = await rig.batch()
    rig.process.finish(batch, [1], 4.0)
    await turn()
    assert rig.results.value(again) == 4.0
    assert rig.changes[-1] == ""
    await rig.close()


@on_loop
async def test_result_that_was_sent_before_the_death_counts():
    rig = Rig(depth=2)
    rig.submit()
    rig.submit()
    batch, _ = await rig.batch()
    rig.process.finish(batch, [1], 6.0)
    rig.process.die()
    await until(lambda: bool(rig.results.by_work[1]))
    assert rig.results.value(0) == 6.0
    assert isinstance(rig.results.error(1), Unavailable)
    await rig.close()


@on_loop
async def test_result_that_waits_for_an_earlier_batch_survives_the_death():
    rig = Rig(depth=2)
    rig.submit()
    rig.submit()
    rig.process.batch()
    second, _ = await rig.batch()
    rig.process.finish(second, [1], 8.0)
    await turn()
    rig.process.die()
    await until(lambda: bool(rig.results.by_work[0]))
    assert isinstance(rig.results.error(0), Unavailable)
    assert rig.results.value(1) == 8.0
    assert rig.results.order == [0, 1]
    await rig.close()


@on_loop
async def test_death_is_seen_while_a_process_that_the_model_has_started_keeps_the_channel():
    rig = Rig(depth=4, has_exit_descriptor=True)
    for _ in range(4):
        rig.submit()
    for value in range(3):
        batch, _ = await rig.batch()
        rig.process.finish(batch, [1], value)
    rig.process.die(-9, keeps_channel=True)
    await until(lambda: bool(rig.results.by_work[3]))
    assert [rig.results.value(number) for number in range(3)] == [0.0, 1.0, 2.0]
    assert "SIGKILL" in rig.results.error(3).message
    await rig.close()


@on_loop
async def test_process_that_closes_its_channel_is_ended():
    rig = Rig()
    number = rig.submit()
    rig.process.peer.close()
    await until(lambda: bool(rig.results.by_work[number]))
    assert "it has closed its channel" in rig.results.error(number).message
    await rig.close()


@on_loop
async def test_death_during_the_copy_of_a_large_batch_gives_one_result():
    rig = Rig()
    number = rig.submit(item(size=LOOP_COPY_BYTES))
    rig.process.die(-9)
    await until(lambda: bool(rig.results.by_work[number]))
    await turn(20)
    assert isinstance(rig.results.error(number), Unavailable)
    assert rig.worker.free_slots == 0
    await rig.restart()
    assert rig.worker.free_slots == 1
    await rig.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda process: process.send_raw(b"\x00"),
        lambda process: process.send_raw(b"\xff" * 200),
        lambda process: process.peer.send(DONE, 1, 1, b"{"),
        lambda process: process.peer.send(DONE, 1, 1, b"[" * 5_000),
        lambda process: process.peer.send(DONE, 1, 1, b"[1,2]"),
        lambda process: process.peer.send(DONE, 1, 0, b'{"o":[[1,[]]],"b":[],"e":[]}'),
        lambda process: process.peer.send(DONE, 1, 0, b'{"o":[[0,7]],"b":[],"e":[]}'),
        lambda process: process.peer.send(DONE, 1, 0, b'{"o":[],"b":[],"e":[]}'),
        lambda process: process.peer.send(RESPONSE, 1, 99, b'{"n":[],"b":[]}'),
        lambda process: process.peer.send(RESPONSE, 1, 0, b'{"n":["OUT"],"b":[]}'),
        lambda process: process.peer.send(RESPONSE, 1, 0, b"7"),
    ],
)
@on_loop
async def test_damaged_message_ends_the_process_and_fails_its_batch(damage):
    rig = Rig()
    number = rig.submit()
    rig.process.batch()
    damage(rig.process)
    await until(lambda: bool(rig.results.by_work[number]))
    error = rig.results.error(number)
    assert isinstance(error, Unavailable)
    assert "has sent a damaged message" in error.message
    assert rig.processes[0].events[0] == "interrupt"
    await rig.restart()
    assert rig.worker.outage == ""
    await rig.close()


@on_loop
async def test_messages_for_no_batch_are_ignored():
    rig = Rig()
    number = rig.submit()
    batch, _ = await rig.batch()
    for kind in (DONE, RESPONSE, FREED, 0, 200):
        rig.process.peer.send(kind, 77, 5)
    rig.process.finish(batch, [1], 2.0)
    rig.process.finish(batch, [1], 3.0)
    await turn(12)
    assert rig.results.value(number) == 2.0
    assert rig.worker.free_slots == 1
    await rig.close()


# -- hangs


@on_loop
async def test_batch_without_progress_is_ended_after_its_time():
    rig = Rig(instance_timeout_s=2.0)
    number = rig.submit()
    rig.timers.advance(1_999_999)
    await turn()
    assert rig.process.events == []
    rig.timers.advance(1)
    await until(lambda: bool(rig.results.by_work[number]))
    error = rig.results.error(number)
    assert isinstance(error, DeadlineExceeded)
    assert "made no progress for 2 s (instance_timeout)" in error.message
    assert rig.processes[0].events[0] == "interrupt"
    await rig.restart()
    assert rig.worker.outage == ""
    await rig.close()


@on_loop
async def test_batches_that_end_in_time_never_trip_the_watchdog():
    rig = Rig(depth=2, instance_timeout_s=2.0)
    for value in range(10):
        rig.submit()
        rig.timers.advance(1_500_000)
        batch, _ = await rig.batch()
        rig.process.finish(batch, [1], value)
        await turn()
    assert rig.process.events == []
    assert rig.deaths == 0
    await rig.close()


@on_loop
async def test_stream_with_responses_makes_progress():
    rig = Rig(signature=STREAMS, reads_requests=True, instance_timeout_s=2.0)
    sink = Sink()
    number = rig.submit(item(responses=sink))
    batch, _ = await rig.batch()
    for value in range(5):
        rig.timers.advance(1_900_000)
        rig.process.respond(batch, value)
        await turn()
        sink.take()
    assert rig.deaths == 0
    rig.timers.advance(2_000_000)
    await until(lambda: bool(rig.results.by_work[number]))
    assert isinstance(rig.results.error(number), DeadlineExceeded)
    await rig.close()


@on_loop
async def test_model_that_waits_for_its_client_does_not_hang():
    rig = Rig(signature=STREAMS, reads_requests=True, instance_timeout_s=2.0)
    sink = Sink()
    rig.submit(item(responses=sink))
    batch, _ = await rig.batch()
    for value in range(CREDITS):
        rig.process.respond(batch, value)
    await turn(CREDITS + 2)
    rig.timers.advance(60_000_000)
    await turn()
    assert rig.deaths == 0
    while sink.take():
        continue
    rig.timers.advance(1_900_000)
    assert rig.process.events == []
    rig.process.end_stream(batch)
    await turn()
    await rig.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
@on_loop
async def test_batch_hangs_only_if_none_of_its_clients_holds_it_back(is_cancelled):
    rig = Rig(signature=ITERATIVE, reads_requests=True, instance_timeout_s=2.0)
    sinks = [Sink(), Sink()]
    number = rig.submit(*(item(responses=sink) for sink in sinks))
    batch, _ = await rig.batch()
    for value in range(CREDITS):
        rig.process.respond(batch, value, 1)
    await turn(CREDITS + 2)
    rig.worker.cancel(rig.results.works[number], 1 if is_cancelled else 0)
    rig.timers.advance(4_000_000)
    await turn()
    if is_cancelled:
        await until(lambda: bool(rig.results.by_work[number]))
        assert isinstance(rig.results.error(number), DeadlineExceeded)
    else:
        assert rig.deaths == 0
        rig.process.end_streams(batch, 2)
        await turn()
    await rig.close()


@on_loop
async def test_model_that_ignores_the_cancellation_of_its_stream_is_ended():
    rig = Rig(signature=STREAMS, reads_requests=True, instance_timeout_s=2.0)
    sink = Sink()
    number = rig.submit(item(responses=sink))
    batch, _ = await rig.batch()
    for value in range(CREDITS):
        rig.process.respond(batch, value)
    await turn(CREDITS + 2)
    rig.worker.cancel(rig.results.works[number], 0)
    sink.is_closed = True
    rig.timers.advance(2_000_000)
    await until(lambda: bool(rig.results.by_work[number]))
    assert isinstance(rig.results.error(number), DeadlineExceeded)
    await rig.close()


# -- restarts


async def die_until_ejected(rig: Rig) -> None:
    for death in range(MOST_DEATHS):
        rig.process.die()
        await until(lambda death=death: rig.deaths == death + 1)  # type: ignore[misc]
        await turn()
        if not rig.worker.is_ejected:
            await rig.restart()


@on_loop
async def test_fifth_death_within_a_minute_ejects_until_a_probe_lives(caplog):
    caplog.set_level(logging.INFO, "stoker.execution")
    rig = Rig()
    await die_until_ejected(rig)
    assert rig.worker.is_ejected
    assert rig.worker.free_slots == 0
    assert "is ejected after repeated deaths" in rig.worker.outage
    assert "SIGSEGV" in rig.worker.outage
    assert "60 s" in rig.worker.outage
    rig.timers.advance(FIRST_EJECTION_NS // 1000 + 1)
    await until(lambda: not rig.worker.outage)
    assert not rig.worker.is_ejected
    assert rig.worker.free_slots == 1
    texts = [(each.levelname, each.getMessage()) for each in caplog.records]
    ejected = f"instance 'm_0' of model 'm' version 3 is ejected: deaths within a minute: {MOST_DEATHS}; the next start is tried in 60 s"
    assert texts.count(("ERROR", ejected)) == 1
    assert texts[-1] == ("INFO", "instance 'm_0' is back in service: a worker process has been started again")
    assert sum("is back in service" in text for _, text in texts) == 1
    await rig.close()


@on_loop
async def test_failed_starts_are_tried_again_and_eject_in_the_end(caplog):
    rig = Rig()
    rig.failures = [ModelLoadError("its file is broken"), OSError(2, "No such file", "/secret/folder"), RuntimeError("boom")]
    rig.process.die()
    await until(lambda: rig.deaths == 1)
    texts = []
    for count in range(3):
        await rig.restart()
        await until(lambda count=count: rig.deaths == count + 2)  # type: ignore[misc]
        await turn()
        texts.append(rig.worker.outage)
    assert "its file is broken" in texts[0]
    assert "FileNotFoundError: No such file" in texts[1]
    assert "secret" not in "".join(texts)
    assert "boom" in texts[2]
    await rig.restart()
    assert rig.worker.outage == ""
    assert rig.starts == 4
    await rig.close()


@on_loop
async def test_pause_before_each_restart_doubles():
    rig = Rig()
    pauses = []
    for death in range(3):
        begun = rig.timers.now
        rig.process.die()
        await until(lambda death=death: rig.deaths == death + 1)  # type: ignore[misc]
        await rig.restart()
        pauses.append(round((rig.timers.now - begun) / 1e8))
    assert pauses == [1, 2, 4]
    await rig.close()


@on_loop
async def test_host_without_threads_costs_neither_the_error_of_a_batch_nor_the_restart(monkeypatch):
    def no_thread(name: str, work: Any) -> Any:
        raise RuntimeError("can't start new thread")

    rig = Rig()
    number = rig.submit()
    with monkeypatch.context() as patch:
        patch.setattr("stoker.server.execution.process_supervision.in_daemon_thread", no_thread)
        rig.process.die()
        await until(lambda: bool(rig.results.by_work[number]))
        assert isinstance(rig.results.error(number), Unavailable)
        await rig.restart()
        assert "can't start new thread" in rig.worker.outage
    await rig.restart()
    assert rig.worker.outage == ""
    await rig.close()


# -- closing


@on_loop
async def test_close_waits_for_the_running_batch():
    rig = Rig()
    number = rig.submit()
    closing = asyncio.ensure_future(rig.worker.close())
    await turn()
    assert rig.process.events == []
    batch, _ = await rig.batch()
    rig.process.finish(batch, [1], 1.0)
    await closing
    assert rig.results.value(number) == 1.0
    assert rig.process.events == ["close"]
    await rig.close()


@on_loop
async def test_close_tells_streams_that_no_client_waits():
    rig = Rig(signature=STREAMS, reads_requests=True)
    rig.submit(item(responses=Sink()))
    closing = asyncio.ensure_future(rig.worker.close())
    assert await kinds(rig.process) == [RUN, CANCEL]
    rig.process.end_stream(1)
    await closing
    await rig.close()


@on_loop
async def test_death_while_closing_ends_the_close_without_a_restart():
    rig = Rig()
    number = rig.submit()
    closing = asyncio.ensure_future(rig.worker.close())
    await turn()
    rig.process.die()
    await closing
    assert isinstance(rig.results.error(number), Unavailable)
    assert rig.starts == 0
    await rig.close()


@on_loop
async def test_close_during_the_pause_before_a_restart_starts_nothing():
    rig = Rig()
    rig.process.die()
    await until(lambda: rig.deaths == 1)
    await turn()
    await rig.worker.close()
    rig.timers.advance(600_000_000)
    await turn()
    assert rig.starts == 0
    await rig.close()


@on_loop
async def test_close_during_a_restart_ends_the_start_and_closes_what_it_made():
    rig = Rig()
    rig.may_start.clear()
    rig.process.die()
    await until(lambda: rig.deaths == 1)
    await turn()
    rig.timers.advance(1_000_000)
    await turn()
    # The start ends only because the close cancels it.
    await rig.worker.close()
    assert rig.processes[1].events == ["close"]
    await rig.close()


@on_loop
async def test_close_while_ejected_ends_at_once():
    rig = Rig()
    await die_until_ejected(rig)
    starts = rig.starts
    await rig.worker.close()
    rig.timers.advance(FIRST_EJECTION_NS // 1000 + 1)
    await turn()
    assert rig.starts == starts
    await rig.close()


@on_loop
async def test_close_while_the_exit_code_is_awaited_waits_for_it():
    rig = Rig()
    number = rig.submit()
    rig.process.waits.clear()
    rig.process.die()
    await turn()
    closing = asyncio.ensure_future(rig.worker.close())
    await turn()
    assert not closing.done()
    rig.process.waits.set()
    await closing
    assert isinstance(rig.results.error(number), Unavailable)
    await rig.close()


@on_loop
async def test_deaths_leave_no_descriptor_thread_or_task():
    rig = Rig(has_exit_descriptor=True)
    await asyncio.to_thread(lambda: None)
    before, threads, tasks = descriptors(), threading.active_count(), len(asyncio.all_tasks())
    for death in range(20):
        rig.submit(item(size=10_000))
        rig.process.die()
        await until(lambda death=death: rig.deaths == death + 1)  # type: ignore[misc]
        old = rig.process
        await turn()
        rig.timers.advance(700_000_000)
        await until(lambda: not rig.worker.outage)
        old.release()
    await until(lambda: threading.active_count() <= threads)
    assert descriptors() == before
    assert len(asyncio.all_tasks()) <= tasks
    await rig.close()


# -- no result is lost or doubled

STEPS = st.lists(
    st.sampled_from(
        ["submit", "submit", "submit large", "finish", "finish", "finish late", "die", "damage", "hang", "fork dies", "restart"]
    ),
    max_size=25,
)


@settings(deadline=None)
@given(st.integers(1, 3), STEPS, st.booleans())
def test_every_batch_gets_exactly_one_result(depth, steps, has_exit_descriptor):
    async def scenario() -> None:
        rig = Rig(depth, has_exit_descriptor=has_exit_descriptor, instance_timeout_s=1.0)
        held: list[tuple[FakeProcess, int]] = []

        def collect() -> None:
            while rig.worker.pid is not None and (found := rig.process.batch()) is not None:
                held.append((rig.process, found[0]))

        for step in steps:
            is_up = rig.worker.pid is not None
            if step.startswith("submit") and rig.worker.free_slots > 0:
                rig.submit(*[item(size=20_000 if "large" in step else 2)] * 2)
            elif step.startswith("finish") and is_up:
                collect()
                if held:
                    process, number = held.pop(-1 if "late" in step else 0)
                    if process is rig.process:
                        process.finish(number, [1, 1], 1.0)
            elif step == "die" and is_up:
                rig.process.die()
            elif step == "fork dies" and is_up and has_exit_descriptor:
                rig.process.die(keeps_channel=True)
            elif step == "damage" and is_up:
                rig.process.send_raw(b"\x07" * 90)
            elif step == "hang" and is_up:
                rig.timers.advance(1_000_001)
            elif step == "restart" and not is_up:
                await until(lambda: rig.worker.outage != "" and not rig.worker.supervision._ending)
                rig.timers.advance(600_000_001)
                await until(lambda: not rig.worker.outage)
                held.clear()
            await turn(8)
            assert 0 <= rig.worker.free_slots <= depth
        if rig.worker.pid is not None:
            rig.process.die()
        await until(lambda: all(rig.results.by_work.values()))
        await rig.close()
        assert [len(seen) for seen in rig.results.by_work.values()] == [1] * len(rig.results.works)
        assert rig.results.order == sorted(rig.results.order)

    asyncio.run(scenario())


# -- metrics of the model, and loads of other models


@on_loop
async def test_metrics_of_the_model_are_those_that_its_process_has_sent_last():
    rig = Rig()
    for value in (1.0, 2.0):
        figures = (Figure(name="requests", help="h", kind="counter", value=value, labels={"a": "b"}),)
        rig.process.peer.send(FIGURES, meta=figures_text(figures))
        await turn()
        assert tuple(rig.worker.model_figures) == figures
    rig.process.die()
    await until(lambda: rig.deaths == 1)
    assert rig.worker.model_figures == ()
    await rig.close()


@on_loop
async def test_damaged_metrics_end_the_process():
    rig = Rig()
    rig.process.peer.send(FIGURES, meta=b'{"nv_inference_count": ["counter", "h", []]}')
    await until(lambda: rig.deaths == 1)
    assert rig.processes[0].events[0] == "interrupt"
    await rig.close()


class Controlling:
    """A `CallHandler` whose process waits for a load while `is_loading`."""

    is_loading = True

    def begin(self, process: WorkerProcess, message: Message) -> None:
        raise NotImplementedError

    def credit(self, process: WorkerProcess, number: int, count: int) -> None:
        raise NotImplementedError

    def cancel(self, process: WorkerProcess, number: int) -> None:
        raise NotImplementedError

    def cancel_all(self, process: WorkerProcess) -> None:
        return None

    def is_controlling(self, process: WorkerProcess) -> bool:
        return self.is_loading


@on_loop
async def test_load_of_another_model_does_not_trip_the_watchdog():
    calls = Controlling()
    rig = Rig(instance_timeout_s=2.0, calls=calls)
    rig.submit()
    await rig.batch()
    for _ in range(3):
        rig.timers.advance(2_000_000)
    assert rig.process.events == []
    calls.is_loading = False
    rig.timers.advance(2_000_000)
    await rig.restart()
    assert rig.processes[0].events[0] == "interrupt"
    await rig.close()
