"""Texts of errors for a table's cell."""

#: Most characters of a problem.
MOST_CHARACTERS = 400


def one_line(error: Exception) -> str:
    """Returns the text of an error in one line of at most `MOST_CHARACTERS`, its lines separated by a colon or a semicolon."""
    text = ""
    for line in filter(None, map(str.strip, str(error).splitlines())):
        text += f"{'' if not text else ' ' if text.endswith(':') else '; '}{line}"
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."
