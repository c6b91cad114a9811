"""The plan for one model: a table of cases, then properties that hold for every case."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.lifecycle.reconcile import CancelLoad, Forget, Generation, Load, Unload, VersionStatus, plan

A = Generation("config", "a")
B = Generation("config", "b")


def ready(version: int, generation: Generation = A, **more: Generation | None) -> VersionStatus:
    return VersionStatus(version=version, serving=generation, **more)


def loading(version: int, generation: Generation = A) -> VersionStatus:
    return VersionStatus(version=version, loading=generation)


def failed(version: int, generation: Generation = A) -> VersionStatus:
    return VersionStatus(version=version, failed=generation)


@pytest.mark.parametrize(
    ("statuses", "desired", "expected"),
    [
        pytest.param([], {}, (), id="nothing"),
        pytest.param([], {1: A, 2: A}, (Load(1, A), Load(2, A)), id="loads all that is wanted"),
        pytest.param([ready(1)], {1: A}, (), id="leaves alone what serves"),
        pytest.param([loading(1)], {1: A}, (), id="leaves alone what loads"),
        pytest.param([failed(1)], {1: A}, (), id="does not repeat a failure"),
        pytest.param([failed(1)], {1: B}, (Load(1, B),), id="tries again what changed"),
        pytest.param([ready(1)], {1: B}, (Load(1, B),), id="loads a change beside"),
        pytest.param([ready(1, failed=B)], {1: B}, (), id="a failed reload leaves the old one"),
        pytest.param([ready(1, failed=B)], {1: A}, (), id="a change that was taken back needs nothing"),
        pytest.param([ready(1, loading=B)], {1: A}, (CancelLoad(1),), id="a change that was taken back while it loads"),
        pytest.param([loading(1, A)], {1: B}, (Load(1, B),), id="a load of old content is replaced"),
        pytest.param([loading(1)], {}, (CancelLoad(1),), id="a load that nobody wants"),
        pytest.param([loading(1)], {1: None}, (CancelLoad(1),), id="a load whose folder is gone"),
        pytest.param([ready(1)], {}, (Unload(1),), id="nothing wanted: unload the last"),
        pytest.param([ready(1)], {2: A}, (Load(2, A),), id="new version first"),
        pytest.param([ready(1), loading(2)], {2: A}, (), id="old one waits for the new one"),
        pytest.param([ready(1), failed(2)], {2: A}, (), id="old one serves when the new one failed"),
        pytest.param([ready(1), ready(2)], {2: A}, (Unload(1),), id="old one goes when the new one serves"),
        pytest.param([ready(1), ready(2), loading(3)], {2: A, 3: A}, (), id="old ones wait for the whole new set"),
        pytest.param([ready(1)], {1: None}, (), id="a wanted version keeps serving without its folder"),
        pytest.param([ready(3)], {5: None}, (), id="a missing version does not replace one that serves"),
        pytest.param([ready(1), ready(3)], {1: A, 5: None}, (Unload(3),), id="a missing version holds nothing back for ever"),
        pytest.param([failed(1), ready(2)], {2: A}, (Forget(1),), id="an old failure is forgotten"),
        pytest.param([failed(1)], {}, (Forget(1),), id="a failure of a removed version is forgotten"),
    ],
)
def test_plan_returns_the_next_safe_actions(statuses, desired, expected) -> None:
    assert plan(statuses, desired) == expected


def test_explicit_load_is_always_a_new_generation() -> None:
    assert plan([ready(1)], {1: replace(A, serial=1)}) == (Load(1, replace(A, serial=1)),)


VERSIONS = st.integers(min_value=1, max_value=4)
GENERATIONS = st.builds(Generation, st.sampled_from("xy"), st.sampled_from("pq"))
WANTED = st.dictionaries(VERSIONS, st.none() | GENERATIONS)
STATUSES = st.dictionaries(
    VERSIONS,
    st.tuples(st.none() | GENERATIONS, st.none() | GENERATIONS, st.none() | GENERATIONS),
).map(lambda all_: [VersionStatus(version=v, serving=s, loading=l, failed=f) for v, (s, l, f) in all_.items()])  # noqa: E741


@given(STATUSES, WANTED)
def test_last_ready_version_is_kept_while_a_desired_one_is_not_ready(statuses, desired) -> None:
    unloads = {action.version for action in plan(statuses, desired) if isinstance(action, Unload)}
    serving = {status.version for status in statuses if status.serving is not None}
    assert unloads <= serving
    assert not unloads & desired.keys(), "nothing that is desired is unloaded"
    if desired and serving:
        assert serving - unloads, "something goes on serving"
    if unloads and desired:
        assert (serving - unloads) & desired.keys(), "what goes on serving is desired"


@given(STATUSES, WANTED)
def test_plan_depends_only_on_its_arguments(statuses, desired) -> None:
    assert plan(statuses, desired) == plan(list(reversed(statuses)), dict(reversed(desired.items())))


class Simulation:
    """A manager reduced to its table: actions happen at once, loads end on command."""

    def __init__(self) -> None:
        self.table: dict[int, VersionStatus] = {}
        self.desired: dict[int, Generation | None] = {}

    def reconcile(self) -> None:
        for action in plan(self.table.values(), self.desired):
            status = self.table.get(action.version, VersionStatus(version=action.version))
            match action:
                case Load(_, generation):
                    status = replace(status, loading=generation)
                case CancelLoad():
                    status = replace(status, loading=None)
                case Unload():
                    status = replace(status, serving=None, failed=None)
                case Forget():
                    status = replace(status, failed=None)
            self.keep(status)

    def finish(self, version: int, *, is_good: bool) -> None:
        status = self.table[version]
        if is_good:
            self.keep(replace(status, serving=status.loading, loading=None, failed=None))
        else:
            self.keep(replace(status, failed=status.loading, loading=None))

    def keep(self, status: VersionStatus) -> None:
        if status.serving or status.loading or status.failed:
            self.table[status.version] = status
        else:
            self.table.pop(status.version, None)

    def loads(self) -> list[int]:
        return sorted(version for version, status in self.table.items() if status.loading)

    def serving(self) -> set[int]:
        return {version for version, status in self.table.items() if status.serving}


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("scan"), WANTED),
        st.tuples(st.just("load ends"), st.tuples(st.integers(min_value=0, max_value=3), st.booleans())),
    ),
    max_size=30,
)


@given(EVENTS, WANTED, st.data())
def test_random_scans_and_failures_never_drop_availability_and_always_converge(events, last_wanted, data) -> None:
    simulation = Simulation()
    for kind, detail in [*events, ("scan", last_wanted)]:
        was_serving = bool(simulation.serving())
        if kind == "scan":
            simulation.desired = detail
        elif simulation.loads():
            pick, is_good = detail
            simulation.finish(simulation.loads()[pick % len(simulation.loads())], is_good=is_good)
        simulation.reconcile()
        assert plan(simulation.table.values(), simulation.desired) == (), "doing a plan leaves nothing to do"
        if was_serving and simulation.desired:
            assert simulation.serving(), "a desired model that served goes on serving"
    for _ in range(20):
        if not simulation.loads():
            break
        simulation.finish(simulation.loads()[0], is_good=data.draw(st.booleans()))
        simulation.reconcile()
    assert not simulation.loads(), "loads come to an end"
    for version, generation in simulation.desired.items():
        status = simulation.table.get(version)
        if generation is not None:
            assert status is not None
            assert generation in (status.serving, status.failed)
    if not simulation.desired:
        assert simulation.table == {}
    elif all(simulation.table[v].serving for v, g in simulation.desired.items() if g) and simulation.serving() & simulation.desired.keys():
        assert simulation.serving() <= simulation.desired.keys(), "versions that are not desired are gone once the desired ones serve"
