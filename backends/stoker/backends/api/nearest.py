"""Finds the known names that a misspelled name resembles: the "did you mean" of error texts."""

import difflib
from collections.abc import Iterable

#: Share of letters in common (difflib's ratio, 0..1) from which a name counts as a misspelling of another.
CLOSENESS = 0.6
#: Characters of the misspelled name that are compared; a longer text is not a name.
_COMPARED = 80


def nearest(word: str, known: Iterable[str], *, most: int = 1, closeness: float = CLOSENESS) -> list[str]:
    """Returns the names among `known` that resemble `word`, best first; equally close names in the order of `known`.

    Letter case does not count.

    Args:
        word: The name that is unknown.
        known: The names that exist.
        most: So many names are returned at most.
        closeness: The least difflib ratio, 0..1.
    """
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(word[:_COMPARED].lower())
    found = []
    for name in dict.fromkeys(known):
        matcher.set_seq1(name.lower())
        # The first two are upper bounds of the third, and cheap.
        if matcher.real_quick_ratio() >= closeness and matcher.quick_ratio() >= closeness and (ratio := matcher.ratio()) >= closeness:
            found.append((ratio, name))
    return [name for _, name in sorted(found, key=lambda pair: -pair[0])[:most]]


def did_you_mean(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """`; did you mean a, b?` for the end of the error about an unknown `word`; empty where no known name is near."""
    near = nearest(word, known, most=most)
    return f"; did you mean {', '.join(near)}?" if near else ""
