"""A small transformer in numpy, with its gradients: word and position embeddings, causal attention, ReLU, RMS norms, tied output."""

from collections.abc import Iterator

import numpy as np

WIDTH, HEADS, LAYERS, HIDDEN, CONTEXT = 64, 4, 2, 256, 64
EPSILON = 1e-5

Weights = dict[str, np.ndarray]


def new_weights(vocabulary: int, rng: np.random.Generator) -> Weights:
    """Random weights, FP32."""
    shapes = {"words": (vocabulary, WIDTH), "places": (CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {
            f"qkv{layer}": (WIDTH, 3 * WIDTH),
            f"out{layer}": (WIDTH, WIDTH),
            f"up{layer}": (WIDTH, HIDDEN),
            f"down{layer}": (HIDDEN, WIDTH),
        }
    weights = {name: (0.02 * 4 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    gains = [f"gain{place}" for place in range(2 * LAYERS + 1)]
    return weights | {name: np.ones(WIDTH, np.float32) for name in gains}


def loss_and_gradients(weights: Weights, tokens: np.ndarray, mask: np.ndarray) -> tuple[float, Weights]:
    """The mean cross entropy of the next tokens where `mask` is 1, and its gradients.

    Args:
        weights: See `new_weights`.
        tokens: `[batch, length + 1]`.
        mask: `[batch, length]`.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    batch, length = inputs.shape
    grads: Weights = {name: np.zeros_like(weight) for name, weight in weights.items()}
    x = weights["words"][inputs] + weights["places"][:length]
    future = np.triu(np.full((length, length), -1e9, np.float32), 1)
    kept = []
    for layer in range(LAYERS):
        normed, r1, x1 = *norm(x, weights[f"gain{2 * layer}"]), x
        q, k, v = np.split((normed @ weights[f"qkv{layer}"]).reshape(batch, length, 3 * HEADS, -1).transpose(0, 2, 1, 3), 3, axis=1)
        scale = np.float32(1 / np.sqrt(WIDTH / HEADS))
        attention = softmax(q @ k.swapaxes(-1, -2) * scale + future)
        mixed = (attention @ v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
        x = x + mixed @ weights[f"out{layer}"]
        normed2, r2, x2 = *norm(x, weights[f"gain{2 * layer + 1}"]), x
        up = normed2 @ weights[f"up{layer}"]
        active = np.maximum(up, 0)
        x = x + active @ weights[f"down{layer}"]
        kept.append((x1, r1, normed, q, k, v, attention, mixed, x2, r2, normed2, up, active))
    final, r, before = *norm(x, weights[f"gain{2 * LAYERS}"]), x
    probabilities = softmax(final @ weights["words"].T)
    count = mask.sum()
    picked = np.take_along_axis(probabilities, targets[..., None], -1)[..., 0]
    loss = float(-(np.log(picked + 1e-9) * mask).sum() / count)

    dlogits = probabilities
    np.put_along_axis(dlogits, targets[..., None], picked[..., None] - 1, -1)
    dlogits *= (mask / count)[..., None]
    flat = dlogits.reshape(-1, dlogits.shape[-1])
    grads["words"] += flat.T @ final.reshape(-1, WIDTH)
    dx = norm_gradient(dlogits @ weights["words"], before, r, weights, f"gain{2 * LAYERS}", grads)
    for layer in reversed(range(LAYERS)):
        x1, r1, normed, q, k, v, attention, mixed, x2, r2, normed2, up, active = kept[layer]
        grads[f"down{layer}"] += active.reshape(-1, HIDDEN).T @ dx.reshape(-1, WIDTH)
        dup = (dx @ weights[f"down{layer}"].T) * (up > 0)
        grads[f"up{layer}"] += normed2.reshape(-1, WIDTH).T @ dup.reshape(-1, HIDDEN)
        dx = dx + norm_gradient(dup @ weights[f"up{layer}"].T, x2, r2, weights, f"gain{2 * layer + 1}", grads)
        grads[f"out{layer}"] += mixed.reshape(-1, WIDTH).T @ dx.reshape(-1, WIDTH)
        dmixed = (dx @ weights[f"out{layer}"].T).reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)
        dattention = dmixed @ v.swapaxes(-1, -2)
        dscores = attention * (dattention - (dattention * attention).sum(-1, keepdims=True)) * scale
        dqkv = np.concatenate([dscores @ k, dscores.swapaxes(-1, -2) @ q, attention.swapaxes(-1, -2) @ dmixed], axis=1)
        dqkv = dqkv.transpose(0, 2, 1, 3).reshape(batch, length, 3 * WIDTH)
        grads[f"qkv{layer}"] += normed.reshape(-1, WIDTH).T @ dqkv.reshape(-1, 3 * WIDTH)
        dx = dx + norm_gradient(dqkv @ weights[f"qkv{layer}"].T, x1, r1, weights, f"gain{2 * layer}", grads)
    np.add.at(grads["words"], inputs, dx)
    grads["places"][:length] += dx.sum(0)
    return loss, grads


def norm(x: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`x` divided by its root mean square, times `gain`; and 1 / root mean square."""
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPSILON))
    return x * r * gain, r


def norm_gradient(dy: np.ndarray, x: np.ndarray, r: np.ndarray, weights: Weights, gain: str, grads: Weights) -> np.ndarray:
    """The gradient of `norm` by `x`; adds that by its gain to `grads`."""
    grads[gain] += (dy * x * r).reshape(-1, WIDTH).sum(0)
    scaled = dy * weights[gain]
    return r * (scaled - x * r * r * (scaled * x).mean(-1, keepdims=True))


def softmax(x: np.ndarray) -> np.ndarray:
    """Over the last dimension."""
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def train(weights: Weights, batches: Iterator[tuple[np.ndarray, np.ndarray]], steps: int, rate: float) -> Iterator[float]:
    """Changes `weights` by Adam; yields the loss of each step."""
    first = {name: np.zeros_like(weight) for name, weight in weights.items()}
    second = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for step in range(1, steps + 1):
        loss, grads = loss_and_gradients(weights, *next(batches))
        now = rate * min(1, step / 20) * (1 - 0.9 * step / steps)
        for name, grad in grads.items():
            first[name] = 0.9 * first[name] + 0.1 * grad
            second[name] = 0.99 * second[name] + 0.01 * grad * grad
            weights[name] -= np.float32(now) * (first[name] / (1 - 0.9**step)) / (np.sqrt(second[name] / (1 - 0.99**step)) + 1e-8)
        yield loss
