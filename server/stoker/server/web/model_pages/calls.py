"""One way to call a model, as text to paste."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A call.

    Attributes:
        title: Which protocol, by which client.
        key: Short and stable: the anchor on the page.
        language: `sh` or `python`.
        text: What to paste.
        note: What one should know; may be empty.
    """

    title: str
    key: str
    language: str
    text: str
    note: str = ""
