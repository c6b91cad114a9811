"""Repository roots as operators configure them."""

from pathlib import Path

import pytest

from stoker.server.lifecycle.repository import ModelRepository, RepositoryUnreadable


def test_repeated_root_is_one_root(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").touch()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    repository = ModelRepository([tmp_path, tmp_path, tmp_path / "link"])
    assert repository.roots == (tmp_path,)
    assert repository.scan().models["m"].error is None


def test_roots_are_checked_before_anything_else(tmp_path):
    ModelRepository([tmp_path]).check_roots()
    with pytest.raises(RepositoryUnreadable, match="absent"):
        ModelRepository([tmp_path, tmp_path / "absent"]).check_roots()


def test_missing_root_of_several_folders_is_refused_with_the_right_flags(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    joined = f"{tmp_path}/a:{tmp_path}/b"
    with pytest.raises(RepositoryUnreadable) as caught:
        ModelRepository([Path(joined)]).check_roots()
    text = str(caught.value)
    assert f"model repository '{joined}' cannot be read: No such file or directory" in text
    assert f"--model-repository={tmp_path}/a --model-repository={tmp_path}/b" in text
    assert "one per line" in text


def test_root_with_a_colon_in_its_path_is_read(tmp_path):
    root = tmp_path / "a:b"
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").touch()
    assert set(ModelRepository([root]).scan().models) == {"m"}


@pytest.mark.parametrize("given", ["s3://bucket/models", "gs://bucket/models"])
def test_bucket_url_is_refused_as_no_folder_of_this_host(given):
    with pytest.raises(RepositoryUnreadable, match="a folder of this host is expected"):
        ModelRepository([Path(given)]).check_roots()
