"""Text to token ids: the first step of the ensemble `topic`."""

import re

import numpy as np

from stoker.models import Array, Context, batched, int32

TOKENS = 16


class Model:
    """Splits texts into words and numbers them by vocabulary.txt; 0 is padding and every unknown word."""

    def __init__(self, context: Context) -> None:
        words = (context.folder / "vocabulary.txt").read_text(encoding="utf-8").split()
        self.ids = {word: index for index, word in enumerate(words, start=1)}

    @batched(max=32)
    def predict(self, text: Array["n", 1, str]) -> Array["n", 16, int32]:
        tokens = np.zeros((len(text), TOKENS), np.int32)
        for row, words in zip(tokens, text[:, 0], strict=True):
            ids = [self.ids.get(word, 0) for word in re.findall(r"[a-z]+", str(words).lower())]
            row[: len(ids)] = ids[:TOKENS]
        return tokens
