"""Trains a small BERT to answer questions about generated passages, and writes it as ONNX.

    python examples/passages/train.py

Passages and questions are written by `passages.py` from seeds; held-out ones have another seed. The inputs are those of BERT, INT64 [64]
per row; outputs `start_logits` and `end_logits` FP32 [64]. Writes `vocab.txt` and a few held-out questions too. Takes some minutes on one
core.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from passages import SEQUENCE, VOCABULARY, held_out, inputs, questions, row, score, vocabulary, write_examples
from training import batches, fit, prepare, record, run_onnx, write_onnx
from wordpiece import WordPiece

SEED = 0
QUESTIONS = 8_000
BATCH = 32
STEPS = 800
RATE = 2e-3
LAYERS, HIDDEN, HEADS = 3, 64, 4
#: Added to the scores of padding, so that a softmax gives it nothing.
PADDING_SCORE = -10000.0
HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models" / "passages" / "1" / "model.onnx"


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection and a normalisation before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.query, self.key, self.value, self.joined = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.feed_forward = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`x` [batch, tokens, HIDDEN]; `mask` [batch, 1, 1, tokens] is added to the scores."""
        y = self.norms[0](x)
        dense = (self.query, self.key, self.value)
        query, key, value = (each(y).reshape(-1, SEQUENCE, HEADS, HIDDEN // HEADS).transpose(1, 2) for each in dense)
        shares = torch.softmax(query @ key.transpose(2, 3) * (HIDDEN // HEADS) ** -0.5 + mask, dim=-1)
        x = x + self.joined((shares @ value).transpose(1, 2).reshape(-1, SEQUENCE, HIDDEN))
        return x + self.feed_forward(self.norms[1](x))


class SmallBert(nn.Module):
    """Embeddings, the layers, and for each token how well an answer starts and ends there."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.token, self.position, self.segment = nn.Embedding(tokens, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN), nn.Embedding(2, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, input_ids: torch.Tensor, input_mask: torch.Tensor, segment_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.token(input_ids) + self.position.weight + self.segment(segment_ids)
        mask = (1 - input_mask[:, None, None, :].float()) * PADDING_SCORE
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.head(self.norm(x))
        return logits[..., 0], logits[..., 1]


def loss(network: SmallBert, *arrays: torch.Tensor) -> torch.Tensor:
    """Cross entropy of starts and ends. `arrays`: the network's inputs, and the places of start and end."""
    *rows, start, end = arrays
    starts, ends = network(*rows)
    return (nn.functional.cross_entropy(starts, start) + nn.functional.cross_entropy(ends, end)) / 2


def spans(asked: list, starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The places of the tokens at which each row's answer starts and ends."""
    found = []
    for each, start in zip(asked, starts, strict=True):
        end = start + len(each.question.answers[0])
        places = [place for place, word in each.words.items() if start <= word.start and word.end <= end]
        found.append((places[0], places[-1]))
    firsts, lasts = np.array(found).T
    return firsts.copy(), lasts.copy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL, help="file to write (default: %(default)s)")
    options = parser.parse_args()

    prepare(SEED)
    VOCABULARY.write_text("".join(token + "\n" for token in vocabulary()), encoding="utf-8")
    tokens = WordPiece(vocabulary())
    print(f"writing {QUESTIONS} questions", flush=True)
    written = list(questions(QUESTIONS, SEED))
    asked = [row(question, tokens) for question, _ in written]
    data = (*inputs(asked).values(), *spans(asked, [start for _, start in written]))
    network = SmallBert(len(tokens))
    fit(network, batches(data, BATCH, STEPS, SEED), loss, steps=STEPS, rate=RATE)

    rows, truth = held_out()
    write_onnx(network, rows, ["start_logits", "end_logits"], options.model)
    record(options.model, SEED, score(run_onnx(options.model, rows), truth))
    write_examples(HERE / "questions.json")


if __name__ == "__main__":
    main()
