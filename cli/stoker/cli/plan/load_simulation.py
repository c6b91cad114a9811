"""`simulate`: the latencies of a load on a modelled device, computed by the server's own scheduler on a virtual clock.

`Scheduler`, its queue, its batch window and its choice of a worker are those of the server; only the worker is simulated: a call takes the
modelled time. No event loop and no thread takes part, so equal arguments give equal figures on every host.

The simulation contains of the host only that responses leave one after the other, each after `host_s`, and a constant time for the rest,
`request_overhead_s`. With neither, the clients of a batch send their next requests at the same moment, which then share a batch again; no
real closed loop does that.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from stoker.backends.api.backend import Arrays
from stoker.backends.api.batch import BatchResult, Outcome
from stoker.backends.api.errors import Overloaded
from stoker.backends.api.model import ModelSignature
from stoker.cli.bench.figures import percentile
from stoker.cli.plan.load import MOST_REQUESTS, NS_PER_S, Arrivals, Batching, ClosedLoop, OpenArrivals, ServiceTimes, within
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig, QueuePolicy
from stoker.server.core.request import EngineResult, InferRequest
from stoker.server.core.virtual_timers import VirtualTimers
from stoker.server.execution.worker import Work
from stoker.server.lifecycle.settings import LoaderSettings
from stoker.server.observability.recorder import FailureReason
from stoker.server.scheduling.scheduler import Scheduler

#: Requests of a simulation without a bound of its own. The 99th percentile is then that of the 180 slowest.
DEFAULT_REQUESTS = 20_000
#: Longest simulated time, seconds.
MOST_DURATION_S = 1e6
#: How long a client of a closed loop waits after a rejection, as those of `stoker bench` do.
_PAUSE_AFTER_REJECTION_NS = 10_000_000
_NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """The figures of the requests after the warm-up. Latencies are from the arrival to the response, the host's time included.

    Attributes:
        requests: Completed requests.
        rejected: Requests that found the queue full.
        rows_per_s: Completed rows per second of virtual time.
        mean_s, p50_s, p90_s, p99_s: Latency: mean and percentiles by nearest rank, seconds.
        mean_batch_rows: Mean rows of a batch.
        utilisation: Share of the time for which the slowest lane of an instance is taken, mean of all instances.
        queue_p99_s: 99th percentile of the time in the queue, seconds.
    """

    requests: int
    rejected: int
    rows_per_s: float
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    mean_batch_rows: float
    utilisation: float
    queue_p99_s: float


def simulate(
    service: ServiceTimes,
    batching: Batching,
    arrivals: Arrivals,
    *,
    requests: int | None = None,
    duration_s: float | None = None,
    warm_up: float = 0.1,
) -> LoadFigures:
    """Runs a load and returns its figures.

    The run ends with `requests` or `duration_s`, whichever comes first; without both, with `DEFAULT_REQUESTS` or with the last recorded
    arrival. In an open loop both bound the arrivals, and every request that has arrived completes. A closed loop is cut off at the bound.

    Args:
        service: The times of the device.
        batching: The batching of the model.
        arrivals: The load.
        requests: Number of requests, those of the warm-up included.
        duration_s: Virtual time, seconds.
        warm_up: Share of the requests (or of the time, without `requests`) at the beginning that does not count.

    Raises:
        ValueError: an argument is out of range, a request or a batch has more rows than the device takes, or no request counts.
    """
    if requests is None and duration_s is None and (isinstance(arrivals, ClosedLoop) or arrivals.count is None):
        requests = DEFAULT_REQUESTS
    if requests is not None:
        within("requests", requests, 1, MOST_REQUESTS)
    if duration_s is not None:
        within("duration_s", duration_s, 1e-6, MOST_DURATION_S)
        if requests is None and isinstance(arrivals, OpenArrivals) and arrivals.count is None:
            within("duration_s x rate_per_s, the number of requests,", duration_s * arrivals.rate_per_s, 0, MOST_REQUESTS)
    within("warm_up", warm_up, 0.0, 0.9)
    if batching.max_batch_size > service.batch_sizes[-1]:
        raise ValueError(f"max_batch_size is {batching.max_batch_size}; the largest compiled batch has {service.batch_sizes[-1]} rows")
    if arrivals.most_rows > batching.max_batch_size:
        raise ValueError(f"a request has {arrivals.most_rows} rows, more than max_batch_size, {batching.max_batch_size}")
    if isinstance(arrivals, OpenArrivals):
        return _OpenRun(service, batching, arrivals, requests, duration_s, warm_up).run()
    return _ClosedRun(service, batching, arrivals, requests, duration_s, warm_up).run()


class _Recorder:
    """A `VersionRecorder` that keeps the requests that count.

    Attributes:
        begin_ns: When the warm-up ended, nanoseconds.
        completed: Completed requests, those of the warm-up included.
        responses_ns: When the responses of the latest batch reach their clients, nanoseconds.
    """

    def __init__(self, service: ServiceTimes, timers: VirtualTimers, *, counts_by_arrival: bool) -> None:
        """Counts the requests that arrived at or after `begin_ns`, or else those that completed after it."""
        self.queue_depth = 0
        self.begin_ns = _NEVER_NS
        self.completed = self.rejected = self.rows = self.calls = self.call_rows = 0
        self.latency_ns: list[int] = []
        self.queue_ns: list[int] = []
        self.responses_ns: Iterator[int] = iter(())
        self._timers = timers
        self._counts_by_arrival = counts_by_arrival
        self._host_ns = round(service.host_s * NS_PER_S)
        self._overhead_ns = round(service.request_overhead_s * NS_PER_S)
        #: When the event loop has sent the last response.
        self._sent_ns = 0

    def executed(self, rows: Sequence[int], *, input_ns: int, infer_ns: int, output_ns: int) -> None:
        if self._timers.now > self.begin_ns:
            self.calls += len(rows)
            self.call_rows += sum(rows)

    def succeeded(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        self.completed += len(rows)
        now_ns, host_ns = self._timers.now, self._host_ns
        sent_ns = max(self._sent_ns, now_ns)
        overhead_ns = self._overhead_ns
        responses_ns: list[int] = []
        for _ in rows:
            sent_ns += host_ns
            responses_ns.append(sent_ns + overhead_ns)
        self._sent_ns = sent_ns
        self.responses_ns = iter(responses_ns)
        counts_from_ns = self.begin_ns if self._counts_by_arrival else 0 if now_ns > self.begin_ns else _NEVER_NS
        for at, served_ns in enumerate(request_ns):
            arrived_ns = now_ns - served_ns
            if arrived_ns >= counts_from_ns:
                self.latency_ns.append(responses_ns[at] - arrived_ns)
                self.queue_ns.append(queue_ns[at])
                self.rows += rows[at]

    def succeeded_apart(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], compute_ns: Sequence[tuple[int, int, int]]
    ) -> None:
        raise AssertionError("simulated workers run no requests apart")

    def failed(self, reason: FailureReason, *, request_ns: int) -> None:
        if self._timers.now >= self.begin_ns:
            self.rejected += 1

    def worker_died(self) -> None:
        raise AssertionError("simulated workers do not die")

    def first_response_buckets(self, bounds_ns: Sequence[int] | None) -> None:
        pass

    def padded(self, *, useful: int, computed: int) -> None:
        raise AssertionError("simulated models have no padding")

    def uses_cache(self, is_cached: bool) -> None:
        raise AssertionError("simulated models have no response cache")

    def cache_hit(self, *, request_ns: int, queue_ns: int, lookup_ns: int) -> None:
        raise AssertionError("simulated models have no response cache")

    def cache_missed(self, *, lookup_ns: int) -> None:
        raise AssertionError("simulated models have no response cache")

    def ejected(self, count: int) -> None:
        raise AssertionError("simulated workers do not fail")


class _Worker:
    """An `InstanceWorker` whose calls take modelled time. Their results come in order.

    Attributes:
        free_slots: Calls that it would accept now.
        busy_ns: Time for which the slowest lane was taken, of calls that began after the warm-up, nanoseconds.
    """

    outage = ""
    is_ejected = False

    def __init__(self, service: ServiceTimes, timers: VirtualTimers, recorder: _Recorder) -> None:
        self.free_slots = service.pipeline_depth
        self.busy_ns = 0
        self._timers = timers
        self._recorder = recorder
        #: By rows of a batch: latency and period, nanoseconds.
        sizes = [service.size_for(rows) for rows in range(service.batch_sizes[-1] + 1)]
        self._times_ns = [(_ns(service.latency_s[size]), _ns(service.period_s[size])) for size in sizes]
        self._free_at_ns = 0
        self._last_end_ns = 0

    def submit(self, work: Work) -> None:
        rows = sum([item.rows for item in work.items])
        latency_ns, period_ns = self._times_ns[rows]
        begin_ns = max(self._timers.now, self._free_at_ns)
        end_ns = max(begin_ns + latency_ns, self._last_end_ns)
        self._free_at_ns, self._last_end_ns = begin_ns + period_ns, end_ns
        self.free_slots -= 1
        if begin_ns >= self._recorder.begin_ns:
            self.busy_ns += period_ns
        outcomes: list[Outcome] = [_OUTPUTS] * len(work.items)
        self._timers.schedule(end_ns, partial(self._finished, work, BatchResult(outcomes, [rows], infer_ns=end_ns - begin_ns)))

    def cancel(self, work: Work, index: int) -> None:
        """The simulation never cancels a request."""

    async def close(self) -> None:
        """The simulation never closes its workers."""

    def _finished(self, work: Work, result: BatchResult) -> None:
        self.free_slots += 1
        work.on_done(result)


#: Scheduling depends on no tensor: requests bring none, and responses have none.
_NO_INPUTS: Arrays = {}
_OUTPUTS: Outcome = {}
_SIGNATURE = ModelSignature((), (), 1)


class _Run:
    """One simulation, for one use."""

    def __init__(
        self,
        service: ServiceTimes,
        batching: Batching,
        *,
        requests: int | None,
        duration_s: float | None,
        warm_up: float,
        counts_by_arrival: bool,
    ) -> None:
        self.timers = VirtualTimers()
        self.recorder = _Recorder(service, self.timers, counts_by_arrival=counts_by_arrival)
        self.most_requests = requests or MOST_REQUESTS
        self.end_ns = _NEVER_NS if duration_s is None else _ns(duration_s)
        self.warm_up_requests: int | None = None
        self.scheduler, self._workers = _scheduler(service, batching, self.timers, self.recorder)
        if requests is not None:
            self.warm_up_requests = math.floor(requests * warm_up)
        elif duration_s is not None:
            self.timers.schedule(round(duration_s * warm_up * NS_PER_S), self.end_warm_up)

    def end_warm_up(self) -> None:
        """Counts requests from now on."""
        self.recorder.begin_ns = self.timers.now

    def request(self, rows: int) -> InferRequest:
        """Returns a request that arrives now."""
        request = InferRequest("model", _NO_INPUTS, (), _SIGNATURE, None, "", rows)
        request.received_ns = self.timers.now
        return request

    def figures(self) -> LoadFigures:
        """Returns the figures of the run, which ends now.

        Raises:
            ValueError: no request counts.
        """
        recorder = self.recorder
        ordered = sorted(recorder.latency_ns)
        if not ordered:
            raise ValueError(f"no request completes after the warm-up: {recorder.completed} completed before; simulate more requests")
        seconds = max(self.timers.now - recorder.begin_ns, 1) / NS_PER_S
        queue_ns = sorted(recorder.queue_ns)
        return LoadFigures(
            requests=len(ordered),
            rejected=recorder.rejected,
            rows_per_s=recorder.rows / seconds,
            mean_s=sum(ordered) / len(ordered) / NS_PER_S,
            p50_s=percentile(ordered, 50) / NS_PER_S,
            p90_s=percentile(ordered, 90) / NS_PER_S,
            p99_s=percentile(ordered, 99) / NS_PER_S,
            mean_batch_rows=recorder.call_rows / recorder.calls if recorder.calls else 0.0,
            utilisation=sum(worker.busy_ns for worker in self._workers) / NS_PER_S / seconds / len(self._workers),
            queue_p99_s=percentile(queue_ns, 99) / NS_PER_S,
        )


class _OpenRun(_Run):
    def __init__(
        self,
        service: ServiceTimes,
        batching: Batching,
        arrivals: OpenArrivals,
        requests: int | None,
        duration_s: float | None,
        warm_up: float,
    ) -> None:
        if requests is None and duration_s is None:
            requests = arrivals.count
        super().__init__(service, batching, requests=requests, duration_s=duration_s, warm_up=warm_up, counts_by_arrival=True)
        self._arrivals: Iterator[tuple[int, int]] = arrivals.times()
        self._arrived = 0
        self._next_ns = self._next_rows = 0

    def run(self) -> LoadFigures:
        """Runs until every request has completed."""
        self._advance()
        if self._next_ns != _NEVER_NS:
            self.timers.schedule(self._next_ns, self._arrive)
        self.timers.run_while()
        return self.figures()

    def _advance(self) -> None:
        """Reads the time and the rows of the next arrival; `_NEVER_NS`: there is none."""
        self._next_ns, self._next_rows = next(self._arrivals, (_NEVER_NS, 0))
        if self._arrived >= self.most_requests or self._next_ns >= self.end_ns:
            self._next_ns = _NEVER_NS

    def _arrive(self) -> None:
        # Requests that arrive at the same time are queued before any batch: they share the batch window.
        while self._next_ns == self.timers.now:
            if self._arrived == self.warm_up_requests:
                self.end_warm_up()
            self._arrived += 1
            with contextlib.suppress(Overloaded):  # the recorder has counted it
                self.scheduler.submit(self.request(self._next_rows), _ignore)
            self._advance()
        if self._next_ns != _NEVER_NS:
            self.timers.schedule(self._next_ns, self._arrive)


class _ClosedRun(_Run):
    def __init__(
        self,
        service: ServiceTimes,
        batching: Batching,
        arrivals: ClosedLoop,
        requests: int | None,
        duration_s: float | None,
        warm_up: float,
    ) -> None:
        super().__init__(service, batching, requests=requests, duration_s=duration_s, warm_up=warm_up, counts_by_arrival=False)
        self._clients = arrivals.clients
        self._rows = arrivals.most_rows

    def run(self) -> LoadFigures:
        """Runs until the bound is reached; requests in flight then do not count."""
        for _ in range(self._clients):
            self.timers.call_soon(self._send)
        if self.end_ns != _NEVER_NS:
            self.timers.schedule(self.end_ns, _ignore_end)
        self.timers.run_while(self._goes_on)
        return self.figures()

    def _goes_on(self) -> bool:
        recorder = self.recorder
        if recorder.begin_ns == _NEVER_NS and self.warm_up_requests is not None and recorder.completed >= self.warm_up_requests:
            self.end_warm_up()
        return recorder.completed < self.most_requests and self.timers.now < self.end_ns

    def _send(self) -> None:
        try:
            self.scheduler.submit(self.request(self._rows), self._received)
        except Overloaded:
            self.timers.schedule(self.timers.now + _PAUSE_AFTER_REJECTION_NS, self._send)

    def _received(self, _: EngineResult) -> None:
        self.timers.schedule(next(self.recorder.responses_ns), self._send)


def _scheduler(
    service: ServiceTimes, batching: Batching, timers: VirtualTimers, recorder: _Recorder
) -> tuple[Scheduler, Sequence[_Worker]]:
    dynamic = DynamicBatching(
        preferred_batch_sizes=batching.preferred_batch_sizes,
        max_queue_delay_us=batching.max_queue_delay_us,
        default_queue_policy=QueuePolicy(max_queue_size=batching.max_queue_size),
    )
    config = ModelConfig(
        name="model",
        backend="simulated",
        platform="simulated",
        signature=replace(_SIGNATURE, max_batch_size=batching.max_batch_size),
        model_filename="",
        instance_groups=(InstanceGroup(name="model", count=service.instances),),
        dynamic_batching=dynamic if batching.is_dynamic else None,
    )
    workers = [_Worker(service, timers, recorder) for _ in range(service.instances)]
    most_queued = batching.max_queue_size or LoaderSettings().max_queue_size
    return Scheduler(config, 1, workers, clock=timers, timers=timers, recorder=recorder, max_queue_size=most_queued), workers


def _ns(seconds: float) -> int:
    return max(1, round(seconds * NS_PER_S))


def _ignore(_: EngineResult) -> None:
    """Receives the response of an open loop's request."""


def _ignore_end() -> None:
    """Moves the time to the end of the run."""
