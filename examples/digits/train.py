"""Trains the sample model `digits` on the UCI handwritten digits that scikit-learn carries, and writes it as ONNX.

    python examples/digits/train.py

Three quarters of the 1797 images train, a quarter is held out and never seen; the split, the training and so the file are the same on
every run. Written: model_repos/digits/1/model.onnx, model_repos/digits/labels.txt, examples/digits/heldout.npz. Needs the extra `examples`.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

SEED = 20
#: Warped copies of each training image.
WARPS = 20
#: Times that training goes through all of them.
ROUNDS = 40
WANTED_ACCURACY = 0.97
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1] / "model_repos"


def warped(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`images` [n, 8, 8], each turned, stretched, slanted and moved a little: pictures of other origin never lie just so."""
    middle = np.array([3.5, 3.5])
    result = np.empty_like(images)
    for place, image in enumerate(images):
        angle, slant = rng.uniform(-0.2, 0.2), rng.uniform(-0.25, 0.25)
        height, width = rng.uniform(0.85, 1.2, 2)
        matrix = np.array([[np.cos(angle) * height, -np.sin(angle)], [np.sin(angle) + slant, np.cos(angle) * width]])
        offset = middle - matrix @ middle + rng.uniform(-0.7, 0.7, 2)
        moved = ndimage.affine_transform(image, matrix, offset=offset, order=1)
        result[place] = moved * (16 / max(moved.max(), 1))
    return result


def train(images: np.ndarray, digits: np.ndarray) -> MLPClassifier:
    rng = np.random.default_rng(SEED)
    print(f"making {WARPS} warped copies of {len(images)} images", flush=True)
    variants = np.concatenate([images, *(warped(images, rng) for _ in range(WARPS))])
    network = MLPClassifier(hidden_layer_sizes=(128, 64), alpha=1e-2, max_iter=ROUNDS, random_state=SEED, verbose=True)
    print(f"training on {len(variants)} images, {ROUNDS} rounds", flush=True)
    with warnings.catch_warnings():
        # Ends by max_iter, not by convergence: the held-out accuracy is the judge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(variants.reshape(-1, 64) / 16, np.tile(digits, 1 + WARPS))
    return network


def to_onnx(network: MLPClassifier) -> onnx.ModelProto:
    """The network with scaling before it and softmax after it: `image` [n, 8, 8] of 0..16 to `scores` [n, 10]."""
    constants = [numpy_helper.from_array(np.array(1 / 16, np.float32), "scale")]
    nodes = [helper.make_node("Mul", ["image", "scale"], ["scaled"]), helper.make_node("Flatten", ["scaled"], ["layer0"], axis=1)]
    last = len(network.coefs_) - 1
    for layer, (weights, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        constants.append(numpy_helper.from_array(weights.astype(np.float32), f"weights{layer}"))
        constants.append(numpy_helper.from_array(bias.astype(np.float32), f"bias{layer}"))
        nodes.append(helper.make_node("Gemm", [f"layer{layer}", f"weights{layer}", f"bias{layer}"], [f"sum{layer}"]))
        if layer < last:
            nodes.append(helper.make_node("Relu", [f"sum{layer}"], [f"layer{layer + 1}"]))
    nodes.append(helper.make_node("Softmax", [f"sum{last}"], ["scores"], axis=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        constants,
    )
    # Written out, because onnx stamps its own newest versions, which ONNX Runtime may not read yet.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="stoker-examples")
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="model repository to write into (default: %(default)s)")
    parser.add_argument("--heldout", type=Path, default=HERE / "heldout.npz", help="where the held-out images go (default: %(default)s)")
    options = parser.parse_args()

    data = load_digits()
    train_images, test_images, train_digits, test_digits = train_test_split(
        data.images, data.target, test_size=0.25, stratify=data.target, random_state=SEED
    )
    network = train(train_images, train_digits)
    accuracy = network.score(test_images.reshape(-1, 64) / 16, test_digits)
    print(f"trained on {len(train_images)} images; accuracy on {len(test_images)} held out: {accuracy:.4f}")
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"accuracy is below {WANTED_ACCURACY}: nothing written")

    folder = options.repository / "digits"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(network), folder / "1" / "model.onnx")
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    np.savez_compressed(options.heldout, images=test_images.astype(np.uint8), digits=test_digits.astype(np.uint8))
    print(f"wrote {folder} and {options.heldout}")


if __name__ == "__main__":
    main()
