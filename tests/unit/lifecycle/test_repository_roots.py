"""Roots as operators give them."""

import pytest

from server.lifecycle.repository import ModelRepository, RepositoryUnreadable


def test_a_root_given_twice_is_one_root(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").touch()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    repository = ModelRepository([tmp_path, tmp_path, tmp_path / "link"])
    assert repository.roots == (tmp_path,)
    assert repository.scan().models["m"].error is None


def test_roots_are_looked_at_before_anything_else(tmp_path):
    ModelRepository([tmp_path]).check_roots()
    with pytest.raises(RepositoryUnreadable, match="absent"):
        ModelRepository([tmp_path, tmp_path / "absent"]).check_roots()
