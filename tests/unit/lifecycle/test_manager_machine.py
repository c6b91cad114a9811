"""Random histories: after any order of loads, unloads, scans, failures and cancellations, the state is that of the last request."""

import asyncio
from collections.abc import Coroutine
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.backends.api.errors import ModelLoadError
from stoker.server.core.model_config import AllVersions, LatestVersions, LoadOverrides, NoVersions, SpecificVersions
from stoker.server.core.state import VersionState
from stoker.server.lifecycle.reconcile import desired_versions
from stoker.server.lifecycle.settings import ControlMode
from tests.fakes.fake_loader import FakeModel, turn
from tests.fakes.manager_bench import Bench

NAMES = st.sampled_from(["m", "n"])
CONTENT = st.dictionaries(st.integers(1, 3), st.sampled_from("ab"), max_size=3)
POLICIES = st.sampled_from([LatestVersions(1), LatestVersions(2), AllVersions(), SpecificVersions((1, 3)), NoVersions()])
GOOD = st.booleans()
PLAIN = LoadOverrides()
SENT = LoadOverrides("{}", {"9/model": b""})


async def at_once(_name, work):
    """Runs work for a thread at once, so that a history replays exactly."""
    return work()


class Machine(RuleBasedStateMachine):
    """Common rules of both control modes: a manual loop, and invariants of every moment."""

    mode = ControlMode.POLL

    @initialize(content=CONTENT, policy=POLICIES)
    def begin(self, content, policy) -> None:
        self.loop = asyncio.new_event_loop()
        self.threads = mock.patch("stoker.server.lifecycle.manager.in_daemon_thread", at_once)
        self.bench = self.run(self._make(content, policy))

    async def _make(self, content, policy) -> Bench:
        return await Bench({"m": FakeModel(dict(content), policy)}, holds=True, mode=self.mode).started()

    def run(self, work: Coroutine[object, object, object]):
        with self.threads:
            return self.loop.run_until_complete(work)

    @rule(pick=st.integers(0, 5), is_good=GOOD)
    @precondition(lambda self: self.bench.loader.pending)
    def a_load_ends(self, pick, is_good) -> None:
        pending = self.bench.loader.pending[pick % len(self.bench.loader.pending)]
        if not pending.outcome.done():
            pending.finish() if is_good else pending.fail()
        self.run(turn(12))

    @rule(name=NAMES, content=CONTENT, policy=POLICIES, config=st.sampled_from("cd"), is_broken=st.booleans())
    def the_repository_changes(self, name, content, policy, config, is_broken) -> None:
        self.bench.models[name] = FakeModel(dict(content), policy, f"{config}{policy}{is_broken}", "typo" if is_broken else None)

    @rule(name=NAMES)
    def a_model_is_removed(self, name) -> None:
        self.bench.models.pop(name, None)

    @rule(pick=st.integers(0, 9))
    @precondition(lambda self: self.bench.loader.loaded)
    def a_request_takes_and_gives_back(self, pick) -> None:
        servable = self.bench.loader.loaded[pick % len(self.bench.loader.loaded)]
        if servable.borrowers:
            self.run(servable.__aexit__(None, None, None))
        elif not servable.retired:
            self.run(servable.__aenter__())
        self.run(turn(12))

    @invariant()
    def what_is_resolved_serves(self) -> None:
        for entry in self.bench.manager.index(True):
            servable = self.bench.manager.resolve(entry.name, entry.version)
            assert not servable.retired
            assert not servable.closed
            default = self.bench.manager.resolve(entry.name, None)
            assert default.version == max(self.bench.manager.ready_versions(entry.name))

    @invariant()
    def nothing_is_closed_while_it_is_held_or_twice(self) -> None:
        for servable in self.bench.loader.loaded:
            assert servable.retired <= 1
            assert servable.closed <= 1
            assert not (servable.closed and servable.borrowers)

    @invariant()
    def what_is_loaded_serves_or_is_on_its_way_out(self) -> None:
        serving = {id(self.bench.manager.resolve(e.name, e.version)) for e in self.bench.manager.index(True)}
        for servable in self.bench.loader.loaded:
            assert (id(servable) in serving) != bool(servable.retired)

    @invariant()
    def metrics_agree_with_the_index(self) -> None:
        index = {(e.name, e.version): e.state for e in self.bench.manager.index() if e.version is not None}
        assert self.bench.recorder.states == index

    def give_all_back(self) -> None:
        for servable in self.bench.loader.loaded:
            while servable.borrowers:
                self.run(servable.__aexit__(None, None, None))
        self.run(turn(12))

    def end_loads(self) -> None:
        for _ in range(50):
            if not self.bench.loader.pending:
                break
            for pending in list(self.bench.loader.pending):
                if not pending.outcome.done():
                    pending.finish()
            self.run(turn(12))
        assert not self.bench.loader.pending

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            self.conclude()
            self.run(self.bench.manager.stop(5))
            self.bench.assert_nothing_leaks()
            assert not asyncio.all_tasks(self.loop)
        finally:
            self.loop.close()

    def conclude(self) -> None:
        """Lets all work end and compares the state with the expected one."""
        raise NotImplementedError


class Polling(Machine):
    """The repository has the last word."""

    @rule()
    def a_scan(self) -> None:
        ready = {entry.name for entry in self.bench.manager.index(True)}
        self.run(self.bench.manager.rescan())
        self.run(turn(12))
        still = {entry.name for entry in self.bench.manager.index(True)}
        for name in ready - still:
            model = self.bench.models.get(name)
            assert model is None or not desired_versions(model.policy, model.versions), "a desired model stopped serving"

    @rule(seconds=st.sampled_from([0.3, 1.0, 5.0]))
    def time_passes(self, seconds) -> None:
        self.bench.clock.advance(seconds)

    def conclude(self) -> None:
        self.give_all_back()
        for _ in range(3):
            self.bench.clock.advance(2)
            self.run(self.bench.manager.rescan())
            self.run(turn(12))
        self.end_loads()
        index = self.bench.manager.index()
        assert {entry.name for entry in index} == {
            name
            for name, model in self.bench.models.items()
            if model.versions or model.error or not isinstance(model.policy, NoVersions) or name in {e.name for e in index}
        }
        for name, model in self.bench.models.items():
            entries = {e.version: e for e in index if e.name == name and e.version is not None}
            if model.error is not None:
                continue
            desired = desired_versions(model.policy, model.versions)
            ready = {version for version, entry in entries.items() if entry.state is VersionState.READY}
            failed = {version for version, entry in entries.items() if entry.state is VersionState.FAILED}
            loadable = desired & model.versions.keys()
            assert loadable <= ready | failed
            if not failed:
                assert ready >= loadable
                assert ready <= desired or not ready & desired


class Explicit(Machine):
    """The last call has the last word."""

    mode = ControlMode.EXPLICIT

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[asyncio.Task[None]] = []
        self.last: dict[str, str] = {}

    @rule(name=NAMES)
    def load(self, name) -> None:
        self.call(name, "load", self.bench.manager.load(name, PLAIN))

    @rule(name=NAMES)
    def load_sent_files(self, name) -> None:
        self.call(name, "sent", self.bench.manager.load(name, SENT))

    @rule(name=NAMES)
    def unload(self, name) -> None:
        self.call(name, "unload", self.bench.manager.unload(name))

    @rule(pick=st.integers(0, 5))
    def a_caller_goes_away(self, pick) -> None:
        if self.calls:
            self.calls[pick % len(self.calls)].cancel()
            self.run(turn(12))

    def call(self, name: str, kind: str, work: Coroutine[object, object, None]) -> None:
        self.last[name] = kind

        async def begin() -> None:
            self.calls.append(asyncio.ensure_future(work))
            await turn(12)

        self.run(begin())

    def conclude(self) -> None:
        self.give_all_back()
        self.bench.loader.holds = False
        for pending in list(self.bench.loader.pending):
            if not pending.outcome.done():
                pending.finish()
        self.run(self.calls_end())
        for name, kind in self.last.items():
            if kind == "unload":
                assert self.bench.manager.ready_versions(name) == ()
            elif kind == "sent":
                self.run(self.bench.manager.load(name, SENT))
                assert self.bench.manager.ready_versions(name) == (9,)
            else:
                self.load_again(name)

    def load_again(self, name: str) -> None:
        """The result of a load of the model as it is now, and the versions that then serve."""
        model = self.bench.models.get(name)
        before = self.bench.manager.ready_versions(name)
        desired = frozenset() if model is None else desired_versions(model.policy, model.versions)
        is_loadable = model is not None and not model.error and desired <= model.versions.keys()
        if is_loadable and (desired or isinstance(model.policy, NoVersions)):
            self.run(self.bench.manager.load(name, PLAIN))
            assert set(self.bench.manager.ready_versions(name)) == desired
            return
        with pytest.raises(ModelLoadError):
            self.run(self.bench.manager.load(name, PLAIN))
        if before and (model is None or model.error or not desired):
            assert self.bench.manager.ready_versions(name) == before
        assert not before or self.bench.manager.ready_versions(name), "a failed load leaves something serving"

    async def calls_end(self) -> None:
        await asyncio.gather(*self.calls, return_exceptions=True)
        while self.bench.manager.is_busy:
            await turn(1)
        await turn(12)


TestPolling = pytest.mark.slow(Polling.TestCase)
TestExplicit = pytest.mark.slow(Explicit.TestCase)
TestPolling.settings = TestExplicit.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
