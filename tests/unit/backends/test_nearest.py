"""Names that resemble a misspelled one."""

from stoker.backends.api.nearest import did_you_mean, nearest


def test_nearest_names_are_sorted_by_similarity_ignoring_case() -> None:
    assert nearest("Batch_sise", ["max_batch_size", "batch_size", "name"], most=2) == ["batch_size", "max_batch_size"]


def test_equally_near_names_keep_their_order() -> None:
    assert nearest("ax", ["bx", "cx", "dx"], most=3, closeness=0.5) == ["bx", "cx", "dx"]
    assert nearest("ax", ["dx", "cx", "dx"], most=3, closeness=0.5) == ["dx", "cx"]


def test_closeness_of_zero_returns_the_requested_number_of_names() -> None:
    assert len(nearest("q", ["a", "b", "c"], most=2, closeness=0.0)) == 2


def test_error_text_ends_with_the_nearest_names_if_there_are_any() -> None:
    assert did_you_mean("fuse_gelo", ["fuse_gelu", "fold"]) == "; did you mean fuse_gelu?"
    assert did_you_mean("zzz", ["fuse_gelu", "fold"]) == ""
