"""Reports of `stoker check` about PopEF models: everything of a load but the device."""

from pathlib import Path

from stoker.backends.api.registry import BackendRegistry
from stoker.backends.ipu.backend import PoplarBackend
from stoker.server.lifecycle.check import VersionReport, check_repository
from tests.fakes.ipu_programs import doubling
from tests.fakes.ipu_served import halving, popef

TENSORS = """
input [ {{ name: "x" data_type: TYPE_{0} dims: [ 2 ] }} ]
output [ {{ name: "y" data_type: TYPE_{0} dims: [ 2 ] }} ]
"""


def checked(folder: Path, content: bytes, config: str | None = None, name_map: str | None = None) -> VersionReport:
    version = folder / "model" / "1"
    version.mkdir(parents=True)
    (version / "executable.popef").write_bytes(content)
    if config is not None:
        (folder / "model" / "config.pbtxt").write_text(config)
    if name_map is not None:
        (version / "name_map.json").write_text(name_map)
    [model] = check_repository([folder], BackendRegistry((PoplarBackend(),))).models
    [report] = model.versions
    return report


def test_fp32_is_served_from_an_fp16_file(tmp_path: Path) -> None:
    report = checked(tmp_path, popef(halving((4, 2))), 'backend: "poplar" max_batch_size: 4' + TENSORS.format("FP32"))
    assert report.errors == ()
    assert "data_type: TYPE_FP32" in report.suggestion


def test_alias_names_the_backend_and_the_file_alone_is_sufficient(tmp_path: Path) -> None:
    assert checked(tmp_path / "alias", popef(doubling((4, 2))), 'backend: "ipu" max_batch_size: 4').backend == "poplar"
    assert checked(tmp_path / "bare", popef(doubling((4, 2)))).backend == "poplar"


def test_unsupported_cast_is_a_problem_with_its_line(tmp_path: Path) -> None:
    report = checked(tmp_path, popef(halving((4, 2))), 'backend: "poplar" max_batch_size: 4' + TENSORS.format("INT8"))
    assert len(report.errors) == 2
    assert all("TYPE_INT8" in error and "TYPE_FP16" in error for error in report.errors)
    assert report.errors[0].startswith("model/config.pbtxt:2: input[0].data_type")


def test_another_batch_size_is_a_problem_and_the_note_names_the_right_one(tmp_path: Path) -> None:
    report = checked(tmp_path, popef(doubling((4, 2)), batches_per_step=8), 'backend: "poplar" max_batch_size: 16')
    assert all("max_batch_size: 16" in error for error in report.errors)
    assert report.errors
    assert "max_batch_size 32 = micro batch 4 x device iterations 8 x replicas 1" in report.notes


def test_bad_name_map_and_a_wrong_hash_are_problems(tmp_path: Path) -> None:
    [error] = checked(tmp_path / "map", popef(doubling((4, 2))), name_map='{"nothing": "x"}').errors
    assert "'name_map.json' names anchor 'nothing'" in error
    [error] = checked(tmp_path / "hash", popef(doubling((4, 2)), hash_text="beef")).errors
    assert "package hash is beef" in error


def test_graphics_cards_are_refused_as_its_device(tmp_path: Path) -> None:
    groups = 'backend: "poplar" max_batch_size: 4 instance_group [ { kind: KIND_GPU }, { kind: KIND_AUTO gpus: [ 1 ] } ]'
    kind, gpus = checked(tmp_path, popef(doubling((4, 2))), groups).errors
    assert "instance_group[0].kind: KIND_GPU is not supported by backend 'poplar'; allowed: KIND_AUTO, KIND_CPU" in kind
    assert "instance_group[1].gpus: not supported by backend 'poplar'" in gpus
