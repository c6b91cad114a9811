"""Errors of several lines in a plan's cells."""

from stoker.cli.plan.texts import MOST_CHARACTERS, one_line


def test_lines_after_a_colon_are_joined() -> None:
    error = ValueError("2 node(s) cannot be compiled for gcu:\n  NonZero (node 'a'): no size\n  Loop (node 'b'): no body")
    assert one_line(error) == "2 node(s) cannot be compiled for gcu: NonZero (node 'a'): no size; Loop (node 'b'): no body"


def test_long_text_is_cut_at_its_bound() -> None:
    text = one_line(ValueError("\n".join(["many words"] * 200)))
    assert len(text) == MOST_CHARACTERS
    assert text.endswith("...")
