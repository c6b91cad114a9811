"""Random data flows: every step runs exactly once, after the steps that it needs and as soon as they have ended; results are right."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import BackendFailed
from stoker.server.core.ensemble import Ensemble, EnsembleStep
from tests.fakes.ensembles import EnsembleRig, signature

#: A step: the tensors that it takes, among those that exist so far, and how many it makes.
Flow = list[tuple[list[int], int]]


@st.composite
def flows(draw: st.DrawFn) -> tuple[int, Flow]:
    """The number of the ensemble's inputs, and its steps in an order in which they can run."""
    count = inputs = draw(st.integers(1, 3))
    steps: Flow = []
    for _ in range(draw(st.integers(1, 7))):
        taken = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4, unique=True))
        made = draw(st.integers(1, 2))
        steps.append((taken, made))
        count += made
    return inputs, steps


def build(inputs: int, flow: Flow, order: list[int], outputs: list[int]) -> tuple[EnsembleRig, dict[str, set[str]]]:
    """The ensemble with its steps in the given `order`; and the steps that each needs directly."""
    steps: list[EnsembleStep] = []
    makers: dict[int, str] = {}
    needs: dict[str, set[str]] = {}
    signatures = {}
    count = inputs
    for index, (taken, made) in enumerate(flow):
        name = f"m{index}"
        needs[name] = {makers[tensor] for tensor in taken if tensor in makers}
        outs = {f"y{at}": f"t{count + at}" for at in range(made)}
        makers.update(dict.fromkeys(range(count, count + made), name))
        count += made
        ins = {f"x{at}": f"t{tensor}" for at, tensor in enumerate(taken)}
        steps.append(EnsembleStep(model=name, version=None, inputs=ins, outputs=outs))
        signatures[name] = signature(list(ins), list(outs))
    names = [f"t{inputs + index % (count - inputs)}" for index in outputs]
    given_signature = signature([f"t{index}" for index in range(inputs)], list(dict.fromkeys(names)))
    return EnsembleRig(given_signature, Ensemble(tuple(steps[index] for index in order)), signatures), needs


def expected(inputs: int, flow: Flow, value: float) -> dict[str, float]:
    """By tensor, its value: each output is the sum of its step's inputs plus one."""
    values = [value] * inputs
    for taken, made in flow:
        values += [sum(values[tensor] for tensor in taken) + 1] * made
    return {f"t{index}": each for index, each in enumerate(values)}


@given(data=st.data(), drawn=flows())
def test_steps_run_once_in_the_order_of_the_data_flow(data: st.DataObject, drawn: tuple[int, Flow]):
    inputs, flow = drawn
    order: list[int] = data.draw(st.permutations(range(len(flow))))
    outputs = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))
    rig, needs = build(inputs, flow, order, outputs)
    arrays: dict[str, Any] = {f"t{index}": np.full((1, 2), 1, np.float32) for index in range(inputs)}
    rig.ask("1", inputs=arrays)
    needed, waiting = set[str](), {f"m{_maker(inputs, flow, spec.name)}" for spec in rig.signature.outputs}
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting |= needs[name]
    done: list[str] = []
    while running := rig.running():
        ready = {name for name in needed if name not in done and needs[name] <= set(done)}
        assert set(running) == ready, "exactly the steps run that have their inputs"
        ended = data.draw(st.sampled_from(sorted(running)))
        rig.finish(ended)
        done.append(ended)
    assert set(done) == needed
    assert len(done) == len(needed), "no step runs twice"
    values = expected(inputs, flow, 1)
    for name, array in rig.response("1").outputs.items():
        assert float(array[0, 0]) == np.float32(values[name])
    assert rig.scheduler.in_flight == 0
    assert rig.ended == ["1"]


@given(data=st.data(), drawn=flows(), count=st.integers(2, 4))
def test_each_request_gets_exactly_one_result_whatever_fails_or_is_cancelled(data: st.DataObject, drawn: tuple[int, Flow], count: int):
    inputs, flow = drawn
    rig, _ = build(inputs, flow, list(range(len(flow))), [0, 5, 11])
    flights = {str(number): rig.ask(str(number)) for number in range(count)}
    cancelled: set[str] = set()
    while running := rig.running():
        if len(cancelled) + len(rig.results) < count and data.draw(st.integers(0, 4)) == 0:
            name = data.draw(st.sampled_from(sorted(flights.keys() - cancelled - rig.results.keys())))
            flights[name].cancel()
            cancelled.add(name)
            continue
        model = data.draw(st.sampled_from(sorted(running)))
        items = rig.models[model].worker.works[0].items
        fails = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)))
        good = [{name: sum(item.inputs.values()) for name in item.output_names} for item in items]
        rig.finish(model, [BackendFailed("no") if fail else each for fail, each in zip(fails, good, strict=True)])
    assert rig.results.keys() | cancelled == flights.keys()
    assert not rig.results.keys() & cancelled
    assert sorted(rig.ended) == sorted(flights)
    assert rig.scheduler.in_flight == 0
    assert all(model.scheduler.in_flight == 0 for model in rig.models.values())
    assert len(rig.log.failures) + len(rig.log.succeeded_rows) == count


def _maker(inputs: int, flow: Flow, tensor: str) -> int:
    at = int(tensor[1:]) - inputs
    for index, (_, made) in enumerate(flow):
        if at < made:
            return index
        at -= made
    raise AssertionError(tensor)
