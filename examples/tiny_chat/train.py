"""Trains the tiny transformer on `corpus.txt` with numpy, and writes a model repository with it.

    python examples/tiny_chat/train.py [--to build/tiny_chat] [--steps 300] [--seed 0]

Some ten seconds on one core. Then: `serve --model_base_path=build/tiny_chat`, see docs/openai.md.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# The matrices are small: more threads would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from export import write  # noqa: E402
from transformer import CONTEXT, new_weights, train  # noqa: E402
from words import ASSISTANT, END, SPECIAL, USER, Tokenizer, split  # noqa: E402

BATCH = 16
REPORT_STEPS = 50


def pairs() -> list[tuple[str, str]]:
    """The questions and replies of the corpus."""
    lines = (HERE / "corpus.txt").read_text(encoding="utf-8").splitlines()
    return [(question, reply) for question, reply in (line.split("\t") for line in lines)]


def batches(tokenizer: Tokenizer, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One or two texts of the corpus in each row, and where the next token is learned: in replies. A text is a question with its reply, or
    the reply alone.
    """
    user, assistant, end = (tokenizer.number(word) for word in (USER, ASSISTANT, END))
    found = []
    for question, reply in pairs():
        asked = [user, *tokenizer.encode(question), end]
        said = [assistant, *tokenizer.encode(reply), end]
        found.append((asked + said, [0] * len(asked) + [0] + [1] * (len(said) - 1)))
        # Without a question: for completions.
        found.append((said[1:], [0] + [1] * (len(said) - 2)))
    while True:
        tokens = np.zeros((BATCH, CONTEXT + 1), np.int64)
        learned = np.zeros((BATCH, CONTEXT + 1), np.float32)
        for row in range(BATCH):
            at = 0
            for number in rng.permutation(len(found))[: rng.integers(1, 3)]:
                text, mask = found[number]
                if at + len(text) <= CONTEXT + 1:
                    tokens[row, at : at + len(text)], learned[row, at : at + len(text)] = text, mask
                    at += len(text)
        length = max(2, int(np.nonzero(learned.any(0))[0].max()) + 1)
        # Position t predicts token t + 1.
        yield tokens[:, :length], learned[:, 1:length]


def main() -> None:
    """Trains, and writes the repository."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path("build/tiny_chat"), help="the folder of the model repository")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    words = sorted({word for pair in pairs() for text in pair for word in split(text)})
    # A word at the beginning of a text has no space before it.
    words = sorted({*words, *(f" {word}" for word in words if word.isalnum())})
    tokenizer = Tokenizer([*SPECIAL, *words])
    weights = new_weights(len(tokenizer.words), rng)
    for step, loss in enumerate(train(weights, batches(tokenizer, rng), options.steps, 6e-3), 1):
        if step % REPORT_STEPS == 0 or step == options.steps:
            print(f"step {step}: loss {loss:.3f}", flush=True)
    for name in ("tiny_chat", "tiny_embed"):
        shutil.copytree(HERE / "models" / name, options.to / name, dirs_exist_ok=True)
        version = options.to / name / "1"
        write(weights, version / "transformer.onnx")
        tokenizer.save(version / "tokenizer.json")
        shutil.copy(HERE / "words.py", version / "words.py")
    print(f"wrote {options.to}: serve --model_base_path={options.to}")


if __name__ == "__main__":
    main()
