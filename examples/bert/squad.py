"""Questions about a passage as rows for BERT, and its logits as answers: the windows and spans of SQuAD's baseline.

A row is `[CLS] question [SEP] window [SEP]` and padding. A passage too long for one row is cut into windows that overlap; each token counts
where it has the most context around it.
"""

import json
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from wordpiece import PADDING, SEPARATOR, START, Word, WordPiece

ARTICLES = frozenset({"a", "an", "the"})


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a passage.

    Attributes:
        id: By which predictions are distinguished.
        answers: Those that count as right; empty where they are not known.
    """

    id: str
    text: str
    passage: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the passage.

    Attributes:
        logit: Sum of the start's and the end's.
        probability: Among the spans that were considered.
    """

    text: str
    logit: float
    probability: float


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the network's inputs, INT64 [sequence] each.

    Attributes:
        words: By position of a token, the word of the passage that it is of.
        counts: By position, whether the token counts here, rather than in a window that shows more around it.
    """

    question: Question
    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray
    words: dict[int, Word] = field(repr=False)
    counts: np.ndarray = field(repr=False)


def rows(question: Question, tokens: WordPiece, *, sequence: int, stride: int, longest_question: int = 64) -> list[Row]:
    """The rows that ask `question`, in order of their windows.

    Args:
        question: What is asked.
        tokens: The tokeniser.
        sequence: Tokens of a row.
        stride: Tokens from one window to the next.
        longest_question: Tokens after which a question is cut off.

    Raises:
        ValueError: the question leaves no tokens for a passage.
    """
    asked = [piece for word in tokens.words(question.text) for piece in tokens.pieces(word.text)][:longest_question]
    passage = [(piece, word) for word in tokens.words(question.passage) for piece in tokens.pieces(word.text)]
    room = sequence - len(asked) - 3
    if room < 1:
        raise ValueError(f"question '{question.id}' has {len(asked)} tokens, which leaves no tokens for a passage in rows of {sequence}")
    starts = [0]
    while starts[-1] + room < len(passage):
        starts.append(starts[-1] + min(stride, room))
    windows = [range(start, min(start + room, len(passage))) for start in starts]
    made = []
    for number, window in enumerate(windows):
        ids = [tokens.number(START), *asked, tokens.number(SEPARATOR), *(passage[at][0] for at in window), tokens.number(SEPARATOR)]
        first = len(asked) + 2
        segments = [0] * first + [1] * (len(ids) - first)
        padding = sequence - len(ids)
        counts = np.zeros(sequence, bool)
        for place, at in enumerate(window, start=first):
            counts[place] = _fullest(windows, at) == number
        made.append(
            Row(
                question,
                np.array(ids + [tokens.number(PADDING)] * padding, np.int64),
                np.array([1] * len(ids) + [0] * padding, np.int64),
                np.array(segments + [0] * padding, np.int64),
                {place: passage[at][1] for place, at in enumerate(window, start=first)},
                counts,
            )
        )
    return made


def _fullest(windows: Sequence[range], at: int) -> int:
    """The window that shows most on the poorer side of token `at`, and among such the longest: SQuAD's rule."""
    context = [
        (min(at - window.start, window.stop - 1 - at) + 0.01 * len(window), -number)
        for number, window in enumerate(windows)
        if at in window
    ]
    return -max(context)[1]


def answers(
    asked: Sequence[Row], start_logits: Sequence[np.ndarray], end_logits: Sequence[np.ndarray], *, best: int = 20, longest: int = 30
) -> list[Answer]:
    """The likeliest answers to one question, likeliest first; none where the passage is empty.

    Args:
        asked: All rows of the question.
        start_logits: FP32 [sequence] of each row.
        end_logits: FP32 [sequence] of each row.
        best: Starts and ends looked at in a row, and answers given at most.
        longest: Tokens of an answer.
    """
    spans: dict[str, float] = {}
    for row, starts, ends in zip(asked, start_logits, end_logits, strict=True):
        likely_ends = _likeliest(row, ends, best)
        for start in _likeliest(row, starts, best):
            if not row.counts[start]:
                continue
            for end in likely_ends:
                if start <= end < start + longest:
                    text = row.question.passage[row.words[start].start : row.words[end].end]
                    spans[text] = max(spans.get(text, -np.inf), float(starts[start]) + float(ends[end]))
    ranked = sorted(spans.items(), key=lambda span: -span[1])[:best]
    if not ranked:
        return []
    weights = np.exp(np.array([logit for _, logit in ranked]) - ranked[0][1])
    return [Answer(text, logit, float(weight)) for (text, logit), weight in zip(ranked, weights / weights.sum(), strict=True)]


def _likeliest(row: Row, logits: np.ndarray, best: int) -> list[int]:
    """Places of the highest logits among the passage's tokens."""
    return sorted(row.words, key=lambda place: -float(logits[place]))[:best]


def read_questions(path: Path) -> list[Question]:
    """The questions of a file in SQuAD's form, version 1.1 or 2.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has another form.
    """
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return [
            Question(str(asked["id"]), asked["question"], paragraph["context"], tuple(each["text"] for each in asked.get("answers", ())))
            for article in found["data"]
            for paragraph in article["paragraphs"]
            for asked in paragraph["qas"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not in SQuAD's form (data, paragraphs, context, qas): {type(error).__name__} {error}") from error


def exact_match(prediction: str, truths: Iterable[str]) -> float:
    """1 if the prediction is one of the truths but for case, articles and punctuation; SQuAD's measure."""
    return float(any(_normalised(prediction) == _normalised(truth) for truth in truths))


def f1(prediction: str, truths: Iterable[str]) -> float:
    """How much of the best fitting truth the prediction has, and how little else: SQuAD's measure, 0 to 1."""
    return max((_f1(_normalised(prediction).split(), _normalised(truth).split()) for truth in truths), default=0.0)


def _f1(found: list[str], wanted: list[str]) -> float:
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else float(found == wanted)


def _normalised(text: str) -> str:
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(word for word in bare.split() if word not in ARTICLES)
