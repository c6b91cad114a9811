"""Packs on devices: windows by a clock that the test turns, devices that fail, models packed by others, several groups of inputs."""

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from poprt.runtime import PackAlgorithm, PackRunner, PackRunnerConfig, Runner

from stoker.backends.ipu.compile.compiler import compile_and_export
from stoker.backends.ipu.runtime import (
    ApplicationRuntimeError,
    DeviceManager,
    RecoverableRuntimeError,
    RuntimeConfig,
    SessionStopped,
    SimulatedSystem,
)
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.pacing import VirtualClock
from tests.fakes.graphs import model_of, tensor

PATIENCE_S = 20.0
ROWS, LENGTH, LIMIT = 2, 4, 3
DAY = 86_400_000_000
"""A window in microseconds, on a clock that stands still."""


def marking(*prefixes: str) -> onnx.ModelProto:
    """For each prefix y = ids x 100 + mask x 10 + position_ids: the result shows the inputs that the device got."""
    nodes, inputs, outputs = [], [], []
    for prefix in prefixes:
        size = (ROWS, LENGTH + len(prefix))
        ids, mask, positions = (f"{prefix}{name}" for name in ("ids", "mask", "position_ids"))
        inputs += [tensor(name, size, np.int32) for name in (ids, mask, positions)]
        outputs.append(tensor(f"{prefix}y", size, np.int32))
        nodes += [
            helper.make_node("Mul", [ids, "hundred"], [f"{prefix}a"]),
            helper.make_node("Mul", [mask, "ten"], [f"{prefix}b"]),
            helper.make_node("Add", [f"{prefix}a", f"{prefix}b"], [f"{prefix}c"]),
            helper.make_node("Add", [f"{prefix}c", positions], [f"{prefix}y"]),
        ]
    return model_of(nodes, inputs, outputs, {"hundred": np.int32(100), "ten": np.int32(10)})


def exported(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "packed.popef"
    compile_and_export(model, [], path)
    return path


def system(*, faults: str = "") -> DeviceManager:
    return DeviceManager(SimulatedSystem(1, clock=VirtualClock(), faults=[FaultPlan.parse(faults)] if faults else []))


def config(**settings) -> PackRunnerConfig:
    return PackRunnerConfig(
        **{"timeout_microseconds": DAY, "max_valid_num": LIMIT, "dynamic_input_name": "ids", "mask_name": "mask", **settings}
    )


def ids(*numbers: int) -> dict[str, np.ndarray]:
    return {"ids": np.array(numbers, np.int32)}


def test_model_packed_elsewhere_runs_by_the_names_of_the_configuration(tmp_path: Path) -> None:
    with Runner(exported(tmp_path, marking("")), config(), device_manager=system()) as runner:
        first, second = runner.execute_async(ids(7)), runner.execute_async(ids(1, 2, 3))
        third = runner.execute_async({**ids(5, 6), "mask": np.array([1, 0], np.int32)})
        responses = [future.result(PATIENCE_S)["y"].tolist() for future in (first, second, third)]
    assert responses == [[710], [120, 221, 322], [530, 601]]


def test_window_ends_by_its_clock(tmp_path: Path) -> None:
    manager = system()
    clock = manager.system.clock
    assert isinstance(clock, VirtualClock)
    with PackRunner(exported(tmp_path, marking("")), config(timeout_microseconds=2_000_000), device_manager=manager) as runner:
        future = runner.execute_async(ids(4))
        clock.advance(1.0)
        other = runner.execute_async(ids(5))
        assert not future.done()
        clock.advance(1.5)
        assert future.result(PATIENCE_S)["y"].tolist() == [410]
        assert other.result(PATIENCE_S)["y"].tolist() == [520]


def test_groups_of_inputs_have_lengths_of_their_own(tmp_path: Path) -> None:
    groups = [["q_ids", "q_mask", "q_position_ids"], ["doc_ids", "doc_mask", "doc_position_ids"]]
    settings = config(dynamic_group=groups, dynamic_input_name="q_ids", algo=PackAlgorithm.first_fit)
    with PackRunner(exported(tmp_path, marking("q_", "doc_")), settings, device_manager=system()) as runner:
        futures = [
            runner.execute_async({"q_ids": np.full(short, 1, np.int32), "doc_ids": np.full(long, 2, np.int32)})
            for short, long in ((2, 8), (6, 1), (1, 7))
        ]
        responses = [future.result(PATIENCE_S) for future in futures]
    assert [(len(each["q_y"]), len(each["doc_y"])) for each in responses] == [(2, 8), (6, 1), (1, 7)]
    assert responses[2]["q_y"].tolist() == [130]
    assert responses[0]["doc_y"].tolist() == [210 + place for place in range(8)]


def test_delimiters_stay_free_between_sequences(tmp_path: Path) -> None:
    settings = config(mask_name="")
    settings.enable_input_single_row_mode("mask", delimiter_num=2)
    with PackRunner(exported(tmp_path, marking("")), settings, device_manager=system()) as runner:
        one, two = runner.execute_async(ids(1, 1)), runner.execute_async(ids(2, 2))
        assert runner.layout.groups[0].shape.gap == 2
        runner.flush()
        assert (one.result(PATIENCE_S)["y"].tolist(), two.result(PATIENCE_S)["y"].tolist()) == ([110, 111], [220, 221])


def test_failure_of_a_pack_fails_all_its_requests_and_not_the_next(tmp_path: Path) -> None:
    settings = config(auto_reset=True, max_valid_num=2)
    with PackRunner(exported(tmp_path, marking("")), settings, device_manager=system(faults="reset@1")) as runner:
        lost = [runner.execute_async(ids(1)), runner.execute_async(ids(2))]
        for future in lost:
            with pytest.raises(RecoverableRuntimeError):
                future.result(PATIENCE_S)
        kept = [runner.execute_async(ids(3)), runner.execute_async(ids(4))]
        assert [future.result(PATIENCE_S)["y"].tolist() for future in kept] == [[310], [420]]


def test_unreferenced_runner_releases_its_device(tmp_path: Path) -> None:
    manager, path = system(), exported(tmp_path, marking(""))
    runner = PackRunner(path, config(), device_manager=manager)
    future = runner.execute_async(ids(1))
    clock = manager.system.clock
    assert isinstance(clock, VirtualClock)
    del runner
    gc.collect()
    clock.advance(DAY / 1e6)
    with pytest.raises(SessionStopped, match="has no references"):
        future.result(PATIENCE_S)
    with PackRunner(path, config(), device_manager=manager) as other:
        waiting = other.execute_async(ids(2))
        other.flush()
        assert waiting.result(PATIENCE_S)["y"].tolist() == [210]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"dynamic_input_name": "words"}, "no input 'words'"),
        ({"dynamic_group": [["ids", "words"]]}, "no input 'words'"),
        ({"dynamic_group": [[]]}, "expected names of inputs"),
        ({"unpack_info_input_name": "places"}, "no input 'places'"),
        ({"mask_name": "words"}, "the mask of executable|no input 'words'"),
    ],
)
def test_unknown_names_are_refused(tmp_path: Path, settings, text) -> None:
    with pytest.raises(ApplicationRuntimeError, match=text):
        PackRunner(exported(tmp_path, marking("")), config(**settings), device_manager=system())


def test_outputs_that_are_not_by_token_need_a_name_for_their_positions(tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("ReduceSum", ["ids", "axis"], ["y"], keepdims=0)],
        [tensor("ids", (ROWS, LENGTH), np.int32)],
        [tensor("y", (ROWS,), np.int32)],
        {"axis": np.array([1])},
    )
    with pytest.raises(ApplicationRuntimeError, match=r"output 'y' .* has shape \[2\]"):
        PackRunner(exported(tmp_path, model), PackRunnerConfig(dynamic_input_name="ids"), device_manager=system())


def test_configuration_of_another_runner_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes a PackRunnerConfig, not a RuntimeConfig"):
        PackRunner(exported(tmp_path, marking("")), RuntimeConfig(), device_manager=system())
