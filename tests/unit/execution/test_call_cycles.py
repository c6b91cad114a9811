"""Calls between models that could never run."""

from dataclasses import dataclass, field

from stoker.server.execution.call_cycles import cycle_of


@dataclass
class Worker:
    process: object | None
    free_slots: int = 0
    depth: int = 1


@dataclass(eq=False)
class Model:
    name: str
    processes: list[Worker] = field(default_factory=list)


def model(name: str, *processes: str, depth: int = 1, free_slots: int = 0) -> Model:
    return Model(name, [Worker(process, free_slots, depth) for process in processes])


def test_only_instance_that_calls_its_own_model_is_a_cycle():
    a = model("a", "p")
    assert cycle_of("p", a, {}) == ["a", "a"]


def test_instance_that_calls_its_own_model_with_another_instance_is_none_until_that_one_calls_too():
    a = model("a", "p", "q")
    assert cycle_of("p", a, {}) == []
    assert cycle_of("q", a, {"p": [a]}) == ["a", "a"]


def test_cycle_of_three_models_is_named_in_the_order_of_the_calls():
    a, b, c = model("a", "p"), model("b", "q"), model("c", "r")
    assert cycle_of("p", b, {}) == []
    assert cycle_of("q", c, {"p": [b]}) == []
    assert cycle_of("r", a, {"p": [b], "q": [c]}) == ["c", "a", "b", "c"]


def test_chain_that_ends_in_a_busy_model_is_none():
    a, b = model("a", "p"), model("b", "q")
    assert cycle_of("r", a, {"p": [b]}) == []


def test_instance_of_the_cycle_that_will_be_free_prevents_it():
    a, b = model("a", "p"), model("b", "q", "s")
    assert cycle_of("q", a, {"p": [b]}) == []


def test_free_slot_or_restart_or_instance_outside_of_a_process_prevents_a_cycle():
    assert cycle_of("p", model("a", "p", free_slots=1), {}) == []
    assert cycle_of("p", Model("a", [Worker("p"), Worker(None)]), {}) == []
    assert cycle_of("p", Model("a"), {}) == []


def test_instance_with_several_slots_is_in_the_cycle_once_all_wait():
    a = model("a", "p", depth=3)
    assert cycle_of("p", a, {"p": [a]}) == []
    assert cycle_of("p", a, {"p": [a, a]}) == ["a", "a"]
