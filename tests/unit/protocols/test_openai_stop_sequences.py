"""`StopFilter`: whatever the pieces, the text is that before the first stop sequence."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.server.protocols.openai.stop_sequences import StopFilter

TEXTS = st.lists(st.text("ab.", max_size=5), max_size=12)
STOPS = st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3)


def sent(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """The text sent for each piece and at the end, and whether a stop sequence came."""
    tested = StopFilter(stops)
    return [*(tested.push(piece) for piece in pieces), "" if tested.is_stopped else tested.flush()], tested.is_stopped


@given(TEXTS, STOPS)
def test_text_ends_before_the_first_stop_sequence_whatever_the_pieces(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    parts, is_stopped = sent(pieces, stops)
    at = min((place for place in (text.find(stop) for stop in stops) if place >= 0), default=-1)
    assert is_stopped == (at >= 0)
    joined = "".join(parts)
    assert text.startswith(joined)
    assert not any(stop in joined for stop in stops)
    if at < 0:
        assert joined == text
    else:
        # Of several stop sequences, the one that is complete first may begin after another one that its piece completes.
        assert any(text[len(joined) :].startswith(stop) for stop in stops)


@given(st.lists(st.text(max_size=5), max_size=12))
def test_nothing_is_held_back_without_stop_sequences(pieces: list[str]) -> None:
    assert sent(pieces, []) == ([*pieces, ""], False)


def test_only_the_beginning_of_a_stop_sequence_is_held_back() -> None:
    assert sent(["one <", "|end", "| two"], ["<|end|>"])[0] == ["one ", "", "<|end| two", ""]
    assert sent(["one <", "|end", "|>"], ["<|end|>"])[0] == ["one ", "", "", ""]
