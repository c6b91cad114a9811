"""Error texts of foreign runtimes, made fit for others' eyes."""

import re
from collections.abc import Iterable
from pathlib import Path

#: A text may quote names out of the model file, which may be of any length; more of it does not help, and not all patterns are linear.
MAX_CHARACTERS = 4096


def tidied(error: Exception, folder: Path | None, without: Iterable[re.Pattern[str]]) -> str:
    """The text of `error` on one line, at most `MAX_CHARACTERS` of it, without what matches one of the patterns `without`, in their order.

    The path of `folder`, this host's copy of the version, is taken out too; an error without a text is called by its class.
    """
    text = str(error).strip()
    if folder is not None:
        text = text.replace(f"{folder}/", "").replace(str(folder), "the version folder")
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}..."
    for pattern in without:
        text = pattern.sub("", text)
    return " ".join(text.split()) or type(error).__name__
