"""Mutated configurations, as JSON (a load may bring it along) and as config.pbtxt: each is read or refused within a bound of CPU time.

    python tests/fuzz/fuzz_config.py [--cases=100000] [--seed=1] [--cpu-s=10]

A finding is any exception but `ConfigError`, an error text that grows with the input or has no UTF-8 form, or a case that takes more than
`--cpu-s` of the processor. The kernel counts that time and ends the process by SIGPROF, with the stack on standard error: this also works
while a regular expression holds the interpreter lock, and does not depend on what else the machine does.
"""

import argparse
import copy
import faulthandler
import json
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from stoker.server.config.pbtxt import parse_config_json, parse_pbtxt
from stoker.server.config.report import MAX_PROBLEMS, MAX_TEXT_BYTES, ConfigError

#: Characters of one problem in an error text: its place, what is wrong and what is allowed.
_MAX_PROBLEM = 4096
_SEED: dict[str, Any] = {
    "name": "m",
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3, -1], "reshape": {"shape": [3, -1]}}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["1"], "label_filename": "labels.txt"}],
    "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
    "dynamic_batching": {
        "preferred_batch_size": [4, 8],
        "max_queue_delay_microseconds": "100",
        "priority_levels": 2,
        "default_priority_level": 1,
        "priority_queue_policy": {"2": {"timeout_action": "DELAY"}},
    },
    "version_policy": {"latest": {"num_versions": 2}},
    "parameters": {"k": {"string_value": "v"}},
    "metric_tags": {"team": "vision"},
    "model_metrics": {"metric_control": [{"histogram_options": {"buckets": [0.5, 1e10]}}]},
    "model_warmup": [{"name": "w", "batch_size": 1, "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [3, 2], "zero_data": True}}}],
}
_SEED_TEXT = """name: "m" # a comment with "quotes"
backend: 'onnxruntime'
max_batch_size: 0x8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] reshape { shape: [ 3, -1 ] } } ]
output < name: "y" data_type: TYPE_FP32 dims: 1; label_filename: "labels" ".txt" >
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
parameters { key: "k" value { string_value: "v\\x41\\101" } }
metric_tags { key: "team" value: "vision" }
model_metrics { metric_control { histogram_options { buckets: [ 0.5, 1e10 ] } } }
version_policy { latest { num_versions: 2 } }
"""
_MARKS = """!"#$%&'()*+,-./:;<=>?@[\\]^`{|}~ \t\n\r\x00\x7f\u00e9\u2028\ud800"""
_VALUES: tuple[Any, ...] = (None, True, -1, 0, 2**64, 1.5, float("nan"), "", "x", "1", "TYPE_FP3", [], [[1]], {}, {"a": 1}, [None], [{}])
#: Texts that a careless regular expression reads in quadratic time.
_PIECES = ("[", "{", '"', '\\"', "\\", ".", "a", "a.", "a[0]", '["', "1", "0.", "-", " ", "\u00e9", "\\u0041", "[[]", '""', "'", ",", ":")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(child)


def _renamed(tree: dict[str, Any], rng: random.Random) -> str:
    """A name with a character more, less or other."""
    owner = rng.choice([each for each in _objects(tree) if each])
    name = rng.choice(list(owner))
    at = rng.randrange(len(name) + 1)
    changed = name[:at] + rng.choice(("", rng.choice(_MARKS), rng.choice(_MARKS) * 3)) + name[at + rng.randrange(2) :]
    owner[changed] = owner.pop(name)
    return json.dumps(tree)


def _added(tree: dict[str, Any], rng: random.Random) -> str:
    """A name made of anything."""
    name = "".join(rng.choice(rng.choice((_MARKS, "abz_09[].", "dims"))) for _ in range(rng.randrange(12)))
    rng.choice(list(_objects(tree)))[name] = copy.deepcopy(rng.choice(_VALUES))
    return json.dumps(tree)


def _retyped(tree: dict[str, Any], rng: random.Random) -> str:
    """A value of another type."""
    owner = rng.choice([each for each in _objects(tree) if each])
    owner[rng.choice(list(owner))] = copy.deepcopy(rng.choice(_VALUES))
    return json.dumps(tree)


def _moved(tree: dict[str, Any], rng: random.Random) -> str:
    """A part of the tree in another place, or in two."""
    source, place = (rng.choice([each for each in _objects(tree) if each]) for _ in range(2))
    place[rng.choice(list(place))] = copy.deepcopy(source[rng.choice(list(source))])
    return json.dumps(tree)


def _spliced(tree: dict[str, Any], rng: random.Random) -> str:
    """Characters of the text itself changed, dropped or written twice."""
    return _splice(json.dumps(tree), rng)


def _splice(text: str, rng: random.Random) -> str:
    for _ in range(rng.randrange(1, 5)):
        begin = rng.randrange(len(text) + 1)
        end = min(len(text), begin + rng.randrange(6))
        text = text[:begin] + rng.choice(("", text[begin:end] * 2, rng.choice(_MARKS), rng.choice('[]{}",:0'))) + text[end:]
    return text


def _long(_tree: dict[str, Any], rng: random.Random) -> str:
    """One piece over and over, up to the bound of a configuration, where a name, a value or the text stands."""
    run = _run(rng)
    return rng.choice((
        run,
        f"[{run}",
        json.dumps({run: 1}),
        json.dumps({"max_batch_size": run}),
        json.dumps({"parameters": {run: {"string_value": "v"}, "k": {"x!": 1}}}),
        json.dumps({"metric_tags": {run: "v"}}),
        json.dumps({"input": [{"name": run, "dims": [run], run[:99]: 1}]}),
        json.dumps({"default_model_filename": run}),
        json.dumps({"model_metrics": {"metric_control": [{"histogram_options": {"buckets": [run]}}]}}),
        json.dumps({f"{run[:20]}{number}": 1 for number in range(2000)}),
        json.dumps({"input": [{f"{number}!": number} for number in range(2000)]}),
    ))  # fmt: skip


def _run(rng: random.Random) -> str:
    piece = rng.choice(_PIECES)
    most = rng.choice((1 << 12, 1 << 16, MAX_TEXT_BYTES - 512)) // len(json.dumps(piece))
    return rng.choice(("", '"', "1")) + piece * most + rng.choice(("", "!", "x", "]", '"'))


def _text(rng: random.Random) -> str:
    """A config.pbtxt: spliced, or with one long piece in some place."""
    if rng.random() < 0.7:
        return _splice(_SEED_TEXT, rng)
    run = _run(rng)
    return rng.choice((
        run,
        f"{run}: 1",
        f"max_batch_size: {run}",
        f'name: "{run}',
        f"# {run}\n{_SEED_TEXT}",
        f"input {{ {run}: 1 dims: {run} }}",
        f"input [ {run} ]",
        f'parameters {{ key: {json.dumps(run)} value {{ x: 1 }} }}',
        f"model_metrics {{ metric_control {{ histogram_options {{ buckets: {run} }} }} }}",
        "".join(f"{run[:20]}{number}: 1\n" for number in range(2000)),
    ))  # fmt: skip


_MUTATIONS: tuple[Callable[[dict[str, Any], random.Random], str], ...] = (_renamed, _renamed, _added, _retyped, _moved, _spliced, _long)


def _case(seed: int) -> str:
    rng = random.Random(seed)
    if seed % 3 == 2:
        return _text(rng)
    return _MUTATIONS[seed % len(_MUTATIONS)](copy.deepcopy(_SEED), rng)


def _read(text: str, *, is_json: bool) -> bool:
    """Whether `text` is a valid configuration.

    Raises:
        AssertionError: its error text is not bounded. UnicodeEncodeError: it cannot be sent.
    """
    try:
        if is_json:
            parse_config_json(text, model_name="m")
        else:
            parse_pbtxt(text, source="m/config.pbtxt", model_name="m")
    except ConfigError as error:
        str(error).encode()
        if not 1 <= len(error.problems) <= MAX_PROBLEMS or any(len(str(problem)) > _MAX_PROBLEM for problem in error.problems):
            raise AssertionError("the error text is not bounded") from None
        return False
    return True


def main() -> int:
    """Runs the cases; 0: no finding."""
    options = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    options.add_argument("--cases", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--cpu-s", type=float, default=10.0)
    asked = options.parse_args()
    parse_config_json(json.dumps(_SEED), model_name="m")
    parse_pbtxt(_SEED_TEXT, source="m/config.pbtxt", model_name="m")
    faulthandler.register(signal.SIGPROF, all_threads=True, chain=True)
    refused = 0
    for seed in range(asked.seed, asked.seed + asked.cases):
        text = _case(seed)
        signal.setitimer(signal.ITIMER_PROF, asked.cpu_s)
        try:
            refused += not _read(text, is_json=seed % 3 != 2)
        except BaseException:
            print(f"seed {seed}: {text[:400]!a}", file=sys.stderr)
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    print(f"{asked.cases} cases, {refused} refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
