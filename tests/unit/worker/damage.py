"""Hypothesis strategies that damage bytes and JSON values."""

from typing import Any

from hypothesis import strategies as st

#: Values that no description of a message expects everywhere.
STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-1, 0, 1, 2**31, 2**63, 2**64, 1 << 200]),
    st.floats(allow_nan=True),
    st.text(max_size=8),
    st.sampled_from(
        ["O", "<f4", ">i8", "|b1", "S5", "U3", "V4", "M8[s]", "(2,)f4", "i4,i4", "[", ",", "(1", "<f4\x00", "object", "f" * 5000]
    ),
    st.lists(st.integers(-3, 300), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
)


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """`original` with some bytes replaced, removed or added."""
    content = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["replace", "cut", "insert"])):
            case "replace" if content:
                content[at] = draw(st.integers(0, 255))
            case "cut":
                del content[at:]
            case _:
                content[at:at] = draw(st.binary(max_size=9))
    return bytes(content)


def paths(value: Any, at: "tuple[Any, ...]" = ()) -> "list[tuple[Any, ...]]":
    """The places of all values in a JSON value."""
    found = [at]
    if isinstance(value, dict):
        for key, each in value.items():
            found += paths(each, (*at, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            found += paths(each, (*at, index))
    return found


def replaced(value: Any, at: "tuple[Any, ...]", new: Any) -> Any:
    """A copy of a JSON value with `new` at one place."""
    if not at:
        return new
    first, rest = at[0], at[1:]
    if isinstance(value, dict):
        return {key: replaced(each, rest, new) if key == first else each for key, each in value.items()}
    return [replaced(each, rest, new) if index == first else each for index, each in enumerate(value)]


@st.composite
def strange(draw: st.DrawFn, original: Any) -> Any:
    """A JSON value with one of its parts replaced by a strange one."""
    return replaced(original, draw(st.sampled_from(paths(original))), draw(STRANGE))
