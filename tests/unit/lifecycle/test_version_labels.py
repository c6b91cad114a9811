"""Labels move once their new version serves."""

from stoker.server.lifecycle.model_list import VersionLabels


def test_label_means_its_configured_version():
    labels = VersionLabels()
    labels.replace({"m": {"stable": 1, "canary": 2}}, lambda name: ())
    assert labels.version("m", "stable", (1, 2)) == 1
    assert labels.version("m", "canary", (1, 2)) == 2
    assert labels.version("m", "beta", (1, 2)) is None
    assert labels.version("n", "stable", (1, 2)) is None
    # A version that does not serve yet is resolved all the same: the request then fails with NOT_FOUND.
    assert labels.version("m", "canary", (1,)) == 2


def test_moved_label_means_the_old_version_until_the_new_one_serves():
    labels = VersionLabels()
    labels.replace({"m": {"stable": 1}}, lambda name: ())
    # No request has used the label yet; it resolved to version 1 nevertheless, because that served.
    labels.replace({"m": {"stable": 2}}, lambda name: (1,))
    assert labels.version("m", "stable", (1,)) == 1
    assert labels.version("m", "stable", (1, 2)) == 2
    # It has moved, and does not go back.
    assert labels.version("m", "stable", (1,)) == 2


def test_removed_labels_mean_nothing_and_start_again():
    labels = VersionLabels()
    labels.replace({"m": {"a": 1}}, lambda name: (1,))
    assert not labels.is_new("m", "a") or labels.version("m", "a", (1,)) == 1
    labels.replace({"m": {}}, lambda name: (1,))
    assert labels.version("m", "a", (1,)) is None
    labels.replace({"m": {"a": 2}}, lambda name: (1,))
    assert labels.version("m", "a", (1,)) == 2
    assert labels.is_new("m", "a")


def test_labels_of_unserved_versions_are_pending():
    labels = VersionLabels()
    labels.replace({"m": {"a": 1, "b": 2}}, lambda name: ())
    assert labels.pending("m", (1,)) == {"b": 2}
    assert labels.pending("m", (1, 2)) == {}
