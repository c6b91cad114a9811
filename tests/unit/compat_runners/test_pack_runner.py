"""Requests of different lengths, packed, compiled and run on a simulated IPU, equal the padded model on each alone."""

import dataclasses
import functools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from poprt.runtime import PackAlgorithm, PackRunner, PackRunnerConfig

from stoker.backends.ipu.opaques import PACKING
from stoker.backends.ipu.runtime import ApplicationRuntimeError, Executable, RunnerType, SessionStopped
from stoker.compiler.cli import main
from tests.fakes.graphs import run_onnx
from tests.fakes.transformers import padded, sequence, small_bert

ROWS, LENGTH, LIMIT = 2, 8, 5
LENGTHS = [3, 4, 5, 2, 6, 1, 6, 6, 2, 3, 3]
#: Windows, in microseconds: one that no test waits for, and one that is over at once.
LONG, SHORT = 60_000_000, 100
PATIENCE_S = 20.0
MODEL = small_bert(ROWS, LENGTH)


def compiled(folder: Path, *pack_args: str) -> Executable:
    onnx.save(MODEL, folder / "bert.onnx")
    arguments = ["--input_model", str(folder / "bert.onnx"), "--output_dir", str(folder), "--export_popef"]
    assert main([*arguments, "--pack_args", f"max_valid_num={LIMIT}", *pack_args], default_target="ipu") == 0
    return Executable(folder / "executable.popef")


@pytest.fixture(scope="module")
def by_row(tmp_path_factory) -> Executable:
    return compiled(tmp_path_factory.mktemp("by_row"))


@pytest.fixture(scope="module")
def by_sequence(tmp_path_factory) -> Executable:
    return compiled(tmp_path_factory.mktemp("by_sequence"), "segment_max_size=6")


@pytest.fixture
def runner(by_row) -> Iterator[PackRunner]:
    with PackRunner(by_row, PackRunnerConfig(timeout_microseconds=SHORT)) as runner:
        yield runner


def expected(request: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    outputs = run_onnx(MODEL, padded(request, ROWS, LENGTH))
    return outputs["tokens"][0, : len(request["input_ids"])], outputs["pooled"][0]


def assert_answered(outputs, request) -> None:
    tokens, pooled = expected(request)
    np.testing.assert_allclose(outputs["tokens"], tokens, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs["pooled"], pooled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", PackAlgorithm)
def test_each_request_gets_the_result_it_would_get_alone(by_row, by_sequence, algorithm) -> None:
    executable = by_sequence if algorithm is PackAlgorithm.end_to_end else by_row
    config = PackRunnerConfig(
        timeout_microseconds=LONG, max_valid_num=LIMIT, dynamic_input_name="input_ids", unpack_info_input_name="unpack_info"
    )
    config.algorithm = algorithm
    requests = [sequence(length, seed) for seed, length in enumerate(LENGTHS)]
    ended: list[int] = []

    def note(number: int, _future: object) -> None:
        ended.append(number)

    with PackRunner(executable, config) as runner:
        futures = [runner.execute_async(request) for request in requests]
        for number, future in enumerate(futures):
            future.add_done_callback(functools.partial(note, number))
        runner.flush()
        for future, request in zip(futures, requests, strict=True):
            assert_answered(future.result(PATIENCE_S), request)
    assert ended == sorted(ended)


def test_pack_waits_only_for_its_window(runner) -> None:
    request = sequence(4, 1)
    assert_answered(runner.execute(request), request)


def test_many_threads_share_packs(runner) -> None:
    requests = [sequence(1 + seed % LENGTH, seed) for seed in range(24)]
    responses: dict[int, object] = {}

    def ask(part: int) -> None:
        for number in range(part, len(requests), 4):
            responses[number] = runner.execute(requests[number])

    threads = [threading.Thread(target=ask, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(responses) == list(range(len(requests)))
    for number, request in enumerate(requests):
        assert_answered(responses[number], request)


def test_documented_vendor_calls_run(by_row) -> None:
    config = PackRunnerConfig(timeout_microseconds=LONG, max_valid_num=LIMIT, dynamic_input_name="input_ids")
    config.algorithm = PackAlgorithm.first_fit
    config.enable_input_single_row_mode("attention_mask")
    assert config.runner_type is RunnerType.PACK_RUNNER
    assert PackRunnerConfig(1500, 40, "input_ids", "unpack_info").unpack_info_input_name == "unpack_info"
    queued = []
    with PackRunner(by_row, config) as runner:
        for seed, length in enumerate((3, 5, 8)):
            request = {name: array[np.newaxis] for name, array in sequence(length, seed).items()}
            request["position_ids"] = np.arange(length, dtype=np.int32)[np.newaxis]
            request["unpack_info"] = np.zeros(LIMIT, np.int32)
            outputs = {"tokens": np.zeros(LENGTH, np.float32), "pooled": np.zeros((1, 2, 4), np.float32)}
            queued.append((runner.execute_async(request, outputs), outputs, sequence(length, seed)))
        runner.flush()
        for future, outputs, request in queued:
            future.wait(PATIENCE_S)
            tokens, pooled = expected(request)
            length = len(tokens)
            np.testing.assert_allclose(outputs["tokens"], np.pad(tokens, (0, LENGTH - length)), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(outputs["pooled"][0], pooled, rtol=1e-4, atol=1e-5)


def test_padding_is_removed_on_request(by_row) -> None:
    config = PackRunnerConfig(timeout_microseconds=SHORT)
    config.enable_padding_remove_mode("attention_mask", ["input_ids", "token_type_ids"])
    short = sequence(3, 7)
    with PackRunner(by_row, config) as runner:
        filled = {name: np.pad(array, (0, LENGTH - 3)) for name, array in short.items()}
        outputs = runner.execute(filled)
    assert outputs["tokens"].shape == (3,)
    assert_answered(outputs, short)


def test_omitted_inputs_are_filled_in(runner) -> None:
    request = sequence(5, 2)
    outputs = runner.execute({name: request[name][np.newaxis] for name in ("input_ids", "token_type_ids")})
    assert {name: array.shape for name, array in outputs.items()} == {"tokens": (1, 5), "pooled": (1, 2, 4)}
    assert_answered({name: array[0] for name, array in outputs.items()}, request)
    assert [desc.name for desc in runner.get_execute_inputs()] == ["input_ids", "attention_mask", "token_type_ids", "position_ids"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"words": np.zeros(3, np.int32)}, "no input 'words'; it has input_ids, token_type_ids, attention_mask, position_ids"),
        ({"input_ids": np.zeros(9, np.int32), "token_type_ids": np.zeros(9, np.int32)}, "has 9 tokens; .* sequences of 1 to 8"),
        ({"input_ids": np.zeros(0, np.int32), "token_type_ids": np.zeros(0, np.int32)}, "has 0 tokens"),
        ({"token_type_ids": np.zeros(2, np.int32)}, "'token_type_ids' has 2 tokens, 'input_ids' has 3"),
        ({"input_ids": np.zeros(3, np.int64)}, "'input_ids' is int64, expected int32"),
        ({"input_ids": np.zeros((2, 3), np.int32)}, r"shape \[2, 3\]; .* \[length\] or \[1, length\]"),
    ],
)
def test_request_that_contradicts_the_model_is_refused_at_once(runner, change, text) -> None:
    request = {name: array for name, array in sequence(3, 0).items() if name != "attention_mask"}
    with pytest.raises(ApplicationRuntimeError, match=text):
        runner.execute_async({**request, **change})
    with pytest.raises(ApplicationRuntimeError, match="lacks input 'token_type_ids'"):
        runner.execute_async({"input_ids": request["input_ids"]})


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"y": np.zeros(3, np.float32)}, "no output 'y'; it has tokens, pooled"),
        ({"tokens": np.zeros(2, np.float32)}, r"float32\[2\], expected float32\[3 or more\]"),
        ({"tokens": np.zeros(3, np.float16)}, r"float16\[3\], expected float32"),
        ({"pooled": np.zeros((2, 2, 4), np.float32)}, r"expected float32\[2, 4\]"),
        ({"tokens": np.broadcast_to(np.float32(0), 3)}, "cannot be written"),
    ],
)
def test_memory_of_the_wrong_size_is_refused(runner, outputs, text) -> None:
    with pytest.raises(ApplicationRuntimeError, match=text):
        runner.execute_async(sequence(3, 0), outputs)


def test_memory_withdrawn_by_its_owner_does_not_affect_other_requests(by_row) -> None:
    kept = sequence(3, 4)
    taken = np.zeros(LENGTH, np.float32)
    with PackRunner(by_row, PackRunnerConfig(timeout_microseconds=LONG)) as runner:
        lost = runner.execute_async(sequence(2, 0), {"tokens": taken})
        other = runner.execute_async(kept)
        taken.flags.writeable = False
        runner.flush()
        with pytest.raises(ValueError, match="read-only"):
            lost.result(PATIENCE_S)
        assert_answered(other.result(PATIENCE_S), kept)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_valid_num": LIMIT + 1}, "packed for at most 5"),
        ({"dynamic_input_name": "words"}, "dynamic_input_name is 'words'"),
        ({"compile_batch_size": 4}, "compile_batch_size is 4; .* has 2 rows"),
        ({"mask_name": "input_ids"}, "the mask of executable '.*' is 'attention_mask'"),
        ({"unpack_info_input_name": "places"}, "has 'unpack_info'"),
        ({"algo": PackAlgorithm.end_to_end}, "pack the model with segment_max_size"),
        ({"padding_remove_mask": "mask"}, "padding-remove mode names 'mask'"),
    ],
)
def test_configuration_that_contradicts_the_model_is_refused(by_row, settings, text) -> None:
    with pytest.raises(ApplicationRuntimeError, match=text):
        PackRunner(by_row, PackRunnerConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"timeout_microseconds": -1}, "timeout_microseconds is -1"),
        ({"max_valid_num": 0}, "max_valid_num is 0"),
        ({"delimiter_num": -1}, "delimiter_num is -1"),
        ({"algo": "next_fit"}, "PackAlgorithm.next_fit"),
        ({"batching_dim": 0}, "batching_dim cannot be set"),
        ({"single_row_input": "m", "algo": PackAlgorithm.end_to_end}, "single-row mode"),
        ({"single_row_input": "m", "mask_name": "n"}, "mask_name is 'n'"),
    ],
)
def test_invalid_configuration_is_refused(by_row, settings, text) -> None:
    with pytest.raises(ValueError, match=text):
        PackRunner(by_row, PackRunnerConfig(**settings))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 9}, "'version' is 9, expected 1"),
        ({"rows": 0}, "'rows' is 0, expected a whole number from 1"),
        ({"token_inputs": "x"}, "'token_inputs' is 'x', expected a list of strings"),
        ({"token_inputs": []}, "at least one name"),
        ({"mask_input": None}, "'mask_input' is None, expected a string"),
        ({"mask_input": "gone"}, "no input 'gone'"),
        ({"token_outputs": ["gone"]}, "no output 'gone'"),
        (None, "holds a list"),
    ],
)
def test_damaged_note_is_refused(by_row, change, text) -> None:
    note = b"[]" if change is None else json.dumps(json.loads(by_row.model.opaques[PACKING]) | change).encode()
    with pytest.raises(ApplicationRuntimeError, match=text):
        PackRunner(Executable(dataclasses.replace(by_row.model, opaques={PACKING: note})))


def test_close_fails_waiting_requests_and_refuses_new_ones(by_row) -> None:
    runner = PackRunner(by_row, PackRunnerConfig(timeout_microseconds=LONG))
    future = runner.execute_async(sequence(3, 0))
    runner.close()
    runner.close()
    with pytest.raises(SessionStopped, match="closed before"):
        future.result(PATIENCE_S)
    with pytest.raises(SessionStopped, match="is closed"):
        runner.execute_async(sequence(3, 0))
