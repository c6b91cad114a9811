"""Reports of `stoker check` and of a load about `model.exec` files: everything of a load but the card."""

from pathlib import Path

import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.api.tensor import DataType
from stoker.backends.gcu.backend import TopsInferenceBackend
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.testing.samples import same_in_and_out, signature
from stoker.server.lifecycle.check import VersionReport, check_repository
from tests.fakes.gcu_backend import CardBench
from tests.fakes.gcu_served import doubling, file_of, pair

TENSORS = """
input {{ name: "x" data_type: {0} dims: [ 2 ] }}
output {{ name: "y" data_type: {0} dims: [ 2 ] }}
"""
FP32 = DataType.FP32


def checked(folder: Path, engine: GcuExecutable, config: str | None = None, **settings: str) -> VersionReport:
    version = folder / "model" / "1"
    version.mkdir(parents=True)
    (version / "model.exec").write_bytes(file_of(engine))
    if config is not None:
        (folder / "model" / "config.pbtxt").write_text(config)
    backend = TopsInferenceBackend()
    backend.configure(settings)
    [model] = check_repository([folder], BackendRegistry((backend,))).models
    [report] = model.versions
    return report


@pytest.mark.parametrize("head", ['platform: "topsinference"', 'backend: "topsinference"', 'backend: "gcu"', ""])
@pytest.mark.parametrize("datatype", ["DT_FLOAT", "TYPE_FP32"])
def test_both_forms_of_configuration_and_every_backend_name_are_accepted(tmp_path: Path, head: str, datatype: str) -> None:
    report = checked(tmp_path, doubling(), f"{head} max_batch_size: 4" + TENSORS.format(datatype))
    assert report.errors == ()
    assert report.backend == "topsinference"


def test_largest_compiled_batch_is_the_default(tmp_path: Path) -> None:
    report = checked(tmp_path, doubling(batches=(1, 12)))
    assert report.errors == ()
    assert "max_batch_size: 12" in report.suggestion


def test_notes_list_the_compiled_batches(tmp_path: Path) -> None:
    first, second = checked(tmp_path, doubling(batches=(1, 4, 16))).notes
    assert first == "engine 'doubling' for card i20, precision fp32; runs on simulated cards"
    assert second.startswith("compiled for batch sizes 1, 4, 16: ")
    assert second.endswith("larger than 16 runs in parts")


def test_missing_card_is_a_configuration_problem(tmp_path: Path) -> None:
    groups = "max_batch_size: 4 instance_group { gpus: [ 0, 2 ] }"
    assert checked(tmp_path / "three", doubling(), groups, cards="3").errors == ()
    [error] = checked(tmp_path / "one", doubling(), groups).errors
    assert "instance_group[0].gpus[1]: backend 'topsinference' has no device 2; it has 0" in error


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        (signature({"z": (FP32, (2,))}, {"y": (FP32, (2,))}), ["input[0].name", "input"]),
        (signature({"x": (FP32, (2,)), "z": (FP32, (2,))}, {"y": (FP32, (2,))}), ["input[1].name"]),
        (signature({}, {"y": (FP32, (2,))}), ["input"]),
        (signature({"x": (FP32, (2,))}, {"y": (FP32, (2,)), "w": (FP32, (2,))}), ["output[1].name"]),
        (signature({"x": (DataType.FP16, (2,))}, {"y": (FP32, (2,))}), ["input[0].data_type"]),
        (signature({"x": (FP32, (3,))}, {"y": (FP32, (2, 1))}), ["input[0].dims", "output[0].dims"]),
        (signature({"x": (FP32, (-1,))}, {"y": (FP32, (2,))}), ["input[0].dims"]),
        (signature({"x": (FP32, (-1, 2))}, {"y": (FP32, (-1, 2))}, 0), ["input[0].dims", "output[0].dims"]),
        (signature({"x": (FP32, (3, 2))}, {"y": (FP32, (4, 2))}, 0), ["output"]),
        (same_in_and_out(FP32, max_batch_size=1 << 29), ["max_batch_size"]),
    ],
)
def test_every_mismatch_of_engine_and_configuration_is_named_by_check_and_load(
    bench: CardBench, served: ModelSignature, expected: list[str]
) -> None:
    found = bench.violations(doubling(), served)
    assert [each.field for each in found] == expected
    with pytest.raises(ModelLoadError) as caught:
        bench.load(doubling(), served)
    assert all(str(each) in caught.value.message for each in found)
    assert bench.figure("stoker_gcu_hbm_used_bytes") == 0


def test_outputs_may_be_omitted(bench: CardBench) -> None:
    assert bench.violations(pair(), signature(dict.fromkeys("ab", (FP32, (2,))), {"q": (FP32, (2,))})) == []


def test_error_of_a_too_large_batch_lists_the_memory_users(bench: CardBench) -> None:
    [violation] = bench.violations(doubling(), same_in_and_out(FP32, max_batch_size=1 << 28), pipeline_depth="4")
    buffers = 4 * 2 * 8 * (1 << 28)
    assert violation.message == (
        f"one instance needs {buffers + 4096} bytes of device memory (weights 0, workspace 4096, buffers for 4 batches of {1 << 28} "
        f"samples {buffers}); a card of type i20 has {16 << 30}"
    )


def test_engine_for_another_card_is_refused(bench: CardBench) -> None:
    [violation] = bench.violations(doubling(card="i10"), same_in_and_out())
    assert str(violation) == "default_model_filename: the engine was compiled for card i10; the simulated cards are i20"


def test_damaged_file_error_has_a_position_and_no_path(bench: CardBench, tmp_path: Path) -> None:
    whole = file_of(doubling())
    for place in (9, 60, len(whole) // 2, len(whole) - 3):
        damaged = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        for ask in (bench.facts, bench.load):
            with pytest.raises(ModelLoadError, match=r"'model\.exec' is no readable executable: ") as caught:
                ask(damaged, same_in_and_out())
            assert str(tmp_path) not in caught.value.message
