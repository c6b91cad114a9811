"""Scores to a name: the last step of the ensemble `topic`."""

from typing import NamedTuple

import numpy as np

from stoker.models import Array, Context, batched, float32


class Result(NamedTuple):
    """The outputs of the model."""

    topic: Array["n", 1, str]
    confidence: Array["n", 1, float32]


class Model:
    """Names the topic with the highest score."""

    def __init__(self, context: Context) -> None:
        self.topics = np.array((context.folder / "topics.txt").read_text(encoding="utf-8").split(), dtype=np.object_)

    @batched(max=32)
    def predict(self, scores: Array["n", 4, float32]) -> Result:
        best = scores.argmax(axis=1)
        return Result(self.topics[best][:, None], scores.max(axis=1, keepdims=True))
