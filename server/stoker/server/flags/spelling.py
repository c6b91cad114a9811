"""All accepted spellings of a command line made into one before flags are read.

`_` for `-`, booleans bare or with a value in the next word, Triton's and Adlik's names for the same things.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from stoker.server.flags.aliases import PIECES, PRIMARY
from stoker.server.flags.groups import BOOLEANS
from stoker.server.flags.values import FALSE, TRUE, FlagError

#: Flags that are words by themselves.
BARE = frozenset({"help", "version"})
#: Of no use to anybody: what `spell` makes of a word that belongs to no flag.
STRAY = "unexpected-argument"


def spell(arguments: Sequence[str]) -> list[str]:
    """Arguments with every flag by its own name, in its dashed spelling, and every boolean flag with its value attached.

    A word that is neither a flag nor the value of one becomes the value of `STRAY`, which `refuse_stray` refuses by name.
    """
    spelled: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*spelled, word, *rest]
        if not word.startswith("-"):
            spelled.append(f"--{STRAY}={word}")
            continue
        if not word.startswith("--"):
            spelled.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        name = PRIMARY.get(name, name)
        if name in PIECES and (equals or rest):
            piece, equals, value = PIECES[name], "=", value if equals else rest.pop(0)
            name, value = piece.flag, f"{piece.beginning}{value}"
        if not equals and name in BOOLEANS:
            value = rest.pop(0) if rest and rest[0].lower() in TRUE | FALSE else "true"
            equals = "="
        if equals and not value and name == "model-base-path":
            raise FlagError(f"--{name} is empty: give the folder that holds the models")
        spelled.append(f"--{name}{equals}{value}")
        if not equals and name not in BARE:
            spelled.extend(rest[:1])
            del rest[:1]
    return spelled


def refuse_stray(words: Sequence[str]) -> None:
    """Before any value is read: a stray word may well be the value that another flag lacks."""
    for word in words:
        is_folder = os.sep in word or Path(word).is_dir()
        raise FlagError(f"unexpected argument '{word}': " + (f"use --model_base_path={word}" if is_folder else "flags are --name=value"))
