"""Asks a served BERT questions about passages, over Adlik's protocol, and prints the likeliest answers.

    python examples/bert/client.py                                                       # the questions of questions.json
    python examples/bert/client.py --passage "Coal is burnt." --question "What is burnt?"
    python examples/bert/client.py --vocab_file vocab.txt --input_file dev-v1.1.json -b 8 --output predictions.json

Takes any BERT that was trained on SQuAD: the vocabulary must be the model's own. Its three inputs (token numbers, mask, segments) are known
by their names; its outputs are two (starts and ends) or one with both. The vocabulary and the questions beside this file are small ones,
which show the way; with them and with seeded weights, answers mean nothing.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share
sys.path.insert(0, str(Path(__file__).resolve().parent))

from adlik_options import add_server_options, served_model
from argument_types import positive
from full_batches import full_batches
from squad import Answer, Question, Row, answers, exact_match, f1, read_questions, rows
from wordpiece import WordPiece

from stoker_client.adlik import PredictContext, tensor_dtype_to_np_dtype

HERE = Path(__file__).parent
#: Starts and ends looked at in a row, as SQuAD's baseline does.
CONSIDERED = 20
#: What the inputs of published exports are called, by what they take. A suffix such as `:0` does not matter.
INPUT_NAMES = {
    "input_ids": ("input_ids", "input_word_ids"),
    "input_mask": ("input_mask", "attention_mask"),
    "segment_ids": ("segment_ids", "token_type_ids", "input_type_ids"),
}


def input_roles(context: PredictContext) -> dict[str, str]:
    """By input of the model, which part of a row it takes."""
    roles: dict[str, str] = {}
    for tensor in context.model_config.input:
        name = tensor.name.partition(":")[0].lower()
        role = next((role for role, names in INPUT_NAMES.items() if name in names), None)
        if role is None or role in roles.values():
            raise SystemExit(f"input '{tensor.name}' is none of BERT's three: {', '.join(INPUT_NAMES)}")
        roles[tensor.name] = role
    if "input_ids" not in roles.values():
        raise SystemExit("the model has no input for token numbers, such as 'input_ids'")
    return roles


def sequence_length(context: PredictContext) -> int:
    """Tokens of a row, as the model is compiled for."""
    shapes = {tuple(tensor.dims) for tensor in context.model_config.input}
    if len(shapes) != 1 or len(shape := next(iter(shapes))) != 1 or shape[0] < 1:
        listed = ", ".join(str(list(dims)) for dims in sorted(shapes))
        raise SystemExit(f"the model's inputs have the dims {listed}, expected one fixed number of tokens; state it by --max_seq_len")
    return int(shape[0])


def logits(
    context: PredictContext, roles: Mapping[str, str], asked: Sequence[Row], batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each row how well an answer starts and ends at each of its tokens: FP32 [sequence] each. `roles` are those of `input_roles`."""
    types = {tensor.name: tensor_dtype_to_np_dtype(tensor.data_type) for tensor in context.model_config.input}
    names = [output.name for output in context.model_config.output]
    for batch, count in full_batches(asked, batch_size):
        inputs = {name: np.stack([getattr(row, role) for row in batch]).astype(types[name]) for name, role in roles.items()}
        outputs = context.run(inputs, names, batch_size=batch_size)
        starts, ends = starts_and_ends({name: outputs[name].tensor for name in names})
        yield from zip(starts[:count], ends[:count], strict=True)


def starts_and_ends(outputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The two logits [batch, sequence], from two outputs (by `start` and `end` in their names, else in their order) or from one."""
    if len(outputs) == 1:
        (both,) = outputs.values()
        if both.ndim == 3 and both.shape[2] == 2:
            return both[..., 0], both[..., 1]
        raise SystemExit(f"the model's output has the shape {list(both.shape)}, expected [batch, sequence, 2]")
    starting = [name for name in outputs if "start" in name.lower()]
    ending = [name for name in outputs if "end" in name.lower() and name not in starting]
    if len(starting) == len(ending) == 1:
        return outputs[starting[0]], outputs[ending[0]]
    if len(outputs) == 2:
        first, second = outputs.values()
        return first, second
    raise SystemExit(f"which outputs are starts and ends? The model has {', '.join(outputs)}")


def ask(
    context: PredictContext, questions: Sequence[Question], tokens: WordPiece, options: argparse.Namespace
) -> Iterator[tuple[Question, list[Answer]]]:
    """Each question with its answers, likeliest first."""
    roles = input_roles(context)
    sequence = options.max_seq_len or sequence_length(context)
    asked = [rows(question, tokens, sequence=sequence, stride=options.doc_stride) for question in questions]
    found = logits(context, roles, [row for each in asked for row in each], options.batch_size)
    for question, windows in zip(questions, asked, strict=True):
        spans = [next(found) for _ in windows]
        yield question, answers(windows, [starts for starts, _ in spans], [ends for _, ends in spans], best=max(CONSIDERED, options.best))


def read_input(options: argparse.Namespace) -> list[Question]:
    """The questions of the options."""
    if (options.passage is None) != (options.question is None):
        raise SystemExit("--passage and --question go together")
    if options.question is not None:
        return [Question("question", options.question, options.passage)]
    return read_questions(options.input_file)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_server_options(parser, "bert")
    parser.add_argument("--vocab_file", type=Path, default=HERE / "vocab.txt", help="tokens, one a line (default: a small one)")
    parser.add_argument("--keep_case", action="store_true", help="for models that tell capitals apart")
    parser.add_argument("--input_file", type=Path, default=HERE / "questions.json", help="questions in SQuAD's form (default: three)")
    parser.add_argument("--passage", help="text to ask about, instead of a file")
    parser.add_argument("--question", help="what to ask about it")
    parser.add_argument("--max_seq_len", type=positive, help="tokens of a row (default: as the model's configuration has it)")
    parser.add_argument("--doc_stride", type=positive, default=128, help="tokens from one window to the next (default: %(default)s)")
    parser.add_argument("--best", type=positive, default=3, help="answers to print of each question (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the best answers as SQuAD's predictions")
    options = parser.parse_args(arguments)

    try:
        tokens = WordPiece.from_file(options.vocab_file, keeps_case=options.keep_case)
        questions = read_input(options)
        predictions: dict[str, str] = {}
        with served_model(options) as context:
            for question, found in ask(context, questions, tokens, options):
                predictions[question.id] = found[0].text if found else ""
                print(f"Question: {question.text}")
                for each in found[: options.best]:
                    print(f"  {each.probability:.3f}  {each.text}")
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    known = [question for question in questions if question.answers]
    if known:
        exact = sum(exact_match(predictions[question.id], question.answers) for question in known) / len(known)
        overlap = sum(f1(predictions[question.id], question.answers) for question in known) / len(known)
        print(f"{len(known)} questions: exact match {exact:.1%}, F1 {overlap:.1%}")
    if options.output is not None:
        options.output.write_text(json.dumps(predictions, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
