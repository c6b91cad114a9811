from typing import NamedTuple

import helper

from stoker.models import Array, BadRequest, batched, float32, int64


class Result(NamedTuple):
    scores: Array["n", 10, float32]
    label: Array["n", int64]


@batched(max=32, delay_ms=1)
def predict(image: Array["n", 8, 8, float32]) -> Result:
    if (image < 0).any():
        raise BadRequest("a pixel is negative")
    scores = helper.scores(image)
    return Result(scores, scores.argmax(axis=1))
