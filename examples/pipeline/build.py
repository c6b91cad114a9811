"""Writes a repository with the ensemble `topic`: tokenise (Python) -> classify (a simulated GCU or IPU) -> label (Python).

    python examples/pipeline/build.py --repository=/tmp/pipeline [--target gcu|ipu|cpu]
    serve --model_base_path=/tmp/pipeline

The classifier is a naive Bayes model of four topics, counted from sentences of a fixed seed, as an ONNX graph of three nodes. `stoker
compile` makes a program for the device of it. The two Python models are in `models`.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stoker.compiler.cli import main as compile_command

HERE = Path(__file__).resolve().parent
TOKENS = 16
MAX_BATCH = 32
SENTENCES = 2000
#: Words of each topic; the sentences mix them with `FILLERS`.
TOPICS = {
    "food": "bread soup cheese cook kitchen salt pepper dinner lunch taste recipe oven apple sugar spoon",
    "music": "guitar song piano concert melody drum singer choir violin rhythm album band tune chord stage",
    "sport": "goal match player team coach ball race runner score win stadium tennis swim medal league",
    "weather": "rain cloud sun wind storm snow cold warm forecast thunder fog degrees frost sky humid",
}
FILLERS = "the a of in and was very with on for today we they it new old good after before some"
ENSEMBLE = f"""platform: "ensemble"
max_batch_size: {MAX_BATCH}
input  {{ name: "TEXT"       data_type: TYPE_STRING dims: [ 1 ] }}
output {{ name: "TOPIC"      data_type: TYPE_STRING dims: [ 1 ] }}
output {{ name: "CONFIDENCE" data_type: TYPE_FP32   dims: [ 1 ] }}
output {{ name: "SCORES"     data_type: TYPE_FP32   dims: [ {len(TOPICS)} ] }}
ensemble_scheduling {{
  step [
    {{
      model_name: "tokenise"
      model_version: -1
      input_map  {{ key: "text"   value: "TEXT" }}
      output_map {{ key: "output" value: "tokens" }}
    }},
    {{
      model_name: "classify"
      model_version: -1
      input_map  {{ key: "tokens" value: "tokens" }}
      output_map {{ key: "scores" value: "SCORES" }}
    }},
    {{
      model_name: "label"
      model_version: -1
      input_map  {{ key: "scores"     value: "SCORES" }}
      output_map {{ key: "topic"      value: "TOPIC" }}
      output_map {{ key: "confidence" value: "CONFIDENCE" }}
    }}
  ]
}}
"""


def vocabulary() -> list[str]:
    """All words, in the order of their ids from 1."""
    return sorted({*FILLERS.split(), *(word for words in TOPICS.values() for word in words.split())})


def weights(seed: int = 7) -> np.ndarray:
    """The logarithm of each word's frequency by topic, FP32 `[words + 1, topics]`; row 0, of unknown words and padding, is zero."""
    generator = np.random.default_rng(seed)
    ids = {word: index for index, word in enumerate(vocabulary(), start=1)}
    counts = np.ones((len(ids) + 1, len(TOPICS)))
    for _ in range(SENTENCES):
        for topic, words in enumerate(TOPICS.values()):
            drawn = [*generator.choice(words.split(), 4), *generator.choice(FILLERS.split(), 5)]
            for word in drawn:
                counts[ids[str(word)], topic] += 1
    table = np.log(counts / counts[1:].sum(axis=0))
    table -= table.mean(axis=1, keepdims=True)
    table[0] = 0
    return table.astype(np.float32)


def classifier() -> onnx.ModelProto:
    """`scores` = the softmax of the sum of the weights of `tokens`."""
    nodes = [
        helper.make_node("Gather", ["weights", "tokens"], ["of_tokens"]),
        helper.make_node("ReduceSum", ["of_tokens", "axis"], ["sums"], keepdims=0),
        helper.make_node("Softmax", ["sums"], ["scores"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "topics",
        [helper.make_tensor_value_info("tokens", TensorProto.INT32, ["n", TOKENS])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", len(TOPICS)])],
        [numpy_helper.from_array(weights(), "weights"), numpy_helper.from_array(np.array([1]), "axis")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def build(repository: Path, target: str) -> None:
    """Writes the four models; the classifier for `target`: gcu, ipu, or cpu (ONNX Runtime).

    Raises:
        SystemExit: the compiler rejected the classifier; it has said why.
    """
    for name in ("tokenise", "label"):
        (repository / name / "1").mkdir(parents=True)
        shutil.copyfile(HERE / "models" / name / "model.py", repository / name / "1" / "model.py")
    (repository / "tokenise" / "1" / "vocabulary.txt").write_text("\n".join(vocabulary()), encoding="utf-8")
    (repository / "label" / "1" / "topics.txt").write_text("\n".join(TOPICS), encoding="utf-8")
    (repository / "topic" / "1").mkdir(parents=True)
    (repository / "topic" / "config.pbtxt").write_text(ENSEMBLE, encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "classify.onnx"
        onnx.save(classifier(), source)
        if target == "cpu":
            (repository / "classify" / "1").mkdir(parents=True)
            shutil.copyfile(source, repository / "classify" / "1" / "model.onnx")
            return
        arguments = ["--target", target, "--input_model", str(source), "--model_repository", str(repository), "--model_name", "classify"]
        arguments += ["--batch_sizes", f"1,{MAX_BATCH}"] if target == "gcu" else ["--batch_size", str(MAX_BATCH), "--batch_axis", "0"]
        print("stoker compile", *arguments)
        code = compile_command(arguments)
        if code != 0:
            raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True, help="folder to write the models into; it must not have them yet")
    parser.add_argument("--target", choices=("gcu", "ipu", "cpu"), default="gcu", help="where the classifier runs (default: %(default)s)")
    options = parser.parse_args()
    build(options.repository, options.target)
    print(f"wrote the ensemble 'topic' into {options.repository}")


if __name__ == "__main__":
    main()
