"""Training in PyTorch and the export to ONNX, for the examples that train a network. Needs `torch`, `onnx`, `onnxscript` and `onnxruntime`.

Everything runs on one thread from fixed seeds: on one machine, the same versions of the packages make the same file.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

OPSET = 18
#: ONNX Runtime reads older versions only than those that the newest onnx writes.
IR_VERSION = 10
#: Packages whose versions the file records.
PACKAGES = ("torch", "numpy", "pillow", "scikit-learn", "onnx", "onnxscript")
REPORT_STEPS = 100


def prepare(seed: int) -> None:
    """Makes PyTorch deterministic."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)


def batches(arrays: Sequence[np.ndarray], size: int, steps: int, seed: int) -> Iterator[list[torch.Tensor]]:
    """`steps` batches of random rows; every row appears once before one appears again.

    Args:
        arrays: The data; the first dimensions are equal.
        size: Rows of a batch.
        steps: Number of batches.
        seed: Of the order.
    """
    rng = np.random.default_rng(seed)
    order = np.empty(0, np.int64)
    for _ in range(steps):
        if len(order) < size:
            order = rng.permutation(len(arrays[0]))
        chosen, order = order[:size], order[size:]
        yield [torch.from_numpy(array[chosen]) for array in arrays]


def fit(
    network: torch.nn.Module, data: Iterator[list[torch.Tensor]], loss: Callable[..., torch.Tensor], *, steps: int, rate: float
) -> None:
    """Trains with AdamW; the learning rate rises to `rate` and falls to 0 (one cycle).

    Args:
        network: Trained in place; in evaluation mode afterwards.
        data: One batch a step.
        loss: From the network and the arrays of a batch to the loss.
        steps: Number of steps.
        rate: Largest learning rate.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    network.train()
    for step, arrays in enumerate(data, start=1):
        value = loss(network, *arrays)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % REPORT_STEPS == 0 or step == steps:
            print(f"step {step} of {steps}: loss {value.item():.4f}", flush=True)
    network.eval()


def write_onnx(network: torch.nn.Module, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], path: Path) -> None:
    """Writes the network as ONNX with a batch of any size.

    Args:
        network: In evaluation mode.
        inputs: Example rows by input name, in the order of the network's arguments.
        outputs: Names, in the order of the network's results.
        path: The file; its folder is made.
    """
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        network,
        tuple(torch.from_numpy(array[:2]) for array in inputs.values()),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_shapes=tuple({0: batch} for _ in inputs),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    model.ir_version = IR_VERSION
    for node in model.graph.node:
        del node.metadata_props[:]  # the exporter's stack traces
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def run_onnx(path: Path, inputs: Mapping[str, np.ndarray], size: int = 50) -> dict[str, np.ndarray]:
    """All outputs by name, from ONNX Runtime, in batches of `size` rows."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    rows = len(next(iter(inputs.values())))
    parts = [session.run(names, {key: array[at : at + size] for key, array in inputs.items()}) for at in range(0, rows, size)]
    return {name: np.concatenate([part[place] for part in parts]) for place, name in enumerate(names)}


def record(path: Path, seed: int, scores: Mapping[str, float]) -> None:
    """Writes the seed, the held-out scores and the versions of the packages into the file's metadata, and prints them."""
    model = onnx.load(path)
    versions = {name: version(name) for name in PACKAGES}
    onnx.helper.set_model_props(model, {"seed": str(seed), "held_out": json.dumps(dict(scores)), "packages": json.dumps(versions)})
    onnx.save(model, path)
    print("held out: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    print(f"wrote {path}, {path.stat().st_size / 1e6:.2f} MB, with " + ", ".join(f"{name} {number}" for name, number in versions.items()))
