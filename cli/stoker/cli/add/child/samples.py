"""Sample rows: of a file, or random ones in the ranges that the converted model distinguishes."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.cli.add.child.job import Job, Unusable

#: Most rows of a file that are compared.
MOST_ROWS = 4096
#: Size of a random sample's open dimensions, except the rows.
OPEN_SIZE = 8


def table_of(path: Path) -> "dict[str, Any]":
    """The columns of a CSV file by name: float32 where every value is a number, else strings. Without a header, names are `0`, `1`, ...

    Raises:
        Unusable: it is empty, or its lines differ in length.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line][: MOST_ROWS + 1]
    if not lines or any(len(line) != len(lines[0]) for line in lines):
        raise Unusable(f"--sample {path.name}: expected lines of the same number of values")
    has_header = not any(_is_number(value) for value in lines[0])
    names = lines[0] if has_header else [str(at) for at in range(len(lines[0]))]
    rows = lines[1:] if has_header else lines
    if not rows:
        raise Unusable(f"--sample {path.name}: there is no row below the header")
    columns = {}
    for name, values in zip(names, zip(*rows)):  # noqa: B905 - Python 3.9
        columns[name] = np.array(values, np.float32) if all(map(_is_number, values)) else np.array(values, dtype=object)
    return columns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def arrays_of(path: Path, names: Sequence[str]) -> "dict[str, Any]":
    """The arrays of a .npy file (of the first of the inputs `names`), .npz file (by input name) or CSV file (one matrix), `[rows, *dims]`.

    Raises:
        Unusable: the file is of another format, or holds objects.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".npy":
            return {names[0]: np.load(path, allow_pickle=False)[:MOST_ROWS]}
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name][:MOST_ROWS] for name in file.files}
        if suffix == ".csv":
            return {names[0]: np.stack(list(table_of(path).values()), axis=1)}
    except (OSError, ValueError) as error:
        raise Unusable(f"--sample {path.name}: {error}") from error
    raise Unusable(f"--sample {path.name}: expected a .npy, .npz or .csv file")


def feature_rows(job: Job, features: int, onnx_model: Any) -> "list[Any]":
    """Samples of `[rows, features]` float32: those of the file, or random rows for each number of rows."""
    if job.sample is not None:
        rows = np.asarray(arrays_of(job.sample, ["input"])["input"], np.float32)
        if rows.ndim != 2 or rows.shape[1] != features:
            raise Unusable(f"--sample {job.sample.name} has shape {list(rows.shape)}; the model takes {features} features a row")
        return split(rows, job.row_counts)
    low, high = _ranges(onnx_model, features)
    generator = np.random.default_rng(0)
    return [generator.uniform(low, high, (count, features)).astype(np.float32) for count in job.row_counts]


def split(rows: Any, counts: Sequence[int]) -> "list[Any]":
    """The rows in parts of these counts, and one part with all rows."""
    parts = [rows[:count] for count in counts if count < len(rows)]
    return [*parts, rows]


def tensor_samples(job: Job, inputs: "dict[str, tuple[str, tuple[int, ...]]]", *, rows: "int | None" = None) -> "list[dict[str, Any]]":
    """Samples by input name: those of the file, or random ones.

    Args:
        job: The conversion.
        inputs: By input name, element type and dims of one row; -1: open.
        rows: The only number of rows that the model takes; None: any.
    """
    if job.sample is not None:
        arrays = {name: np.asarray(array, inputs[name][0]) for name, array in arrays_of(job.sample, list(inputs)).items() if name in inputs}
        missing = sorted(inputs.keys() - arrays.keys())
        if missing:
            raise Unusable(f"--sample {job.sample.name} has no array for {', '.join(missing)}; a .npz file holds one for each input")
        counts = job.row_counts if rows is None else [rows]
        most = min(len(array) for array in arrays.values())
        return [
            {name: array[:count] for name, array in arrays.items()} for count in dict.fromkeys([*(c for c in counts if c < most), most])
        ]
    generator = np.random.default_rng(0)
    samples = []
    for count in job.row_counts if rows is None else [rows]:
        sample = {}
        for name, (dtype, dims) in inputs.items():
            shape = (count, *(OPEN_SIZE if size < 0 else size for size in dims))
            kind = np.dtype(dtype).kind
            if kind == "f":
                sample[name] = generator.random(shape).astype(dtype)
            elif kind == "b":
                sample[name] = generator.integers(0, 2, shape).astype(dtype)
            else:
                sample[name] = generator.integers(0, 3, shape).astype(dtype)
        samples.append(sample)
    return samples


def _ranges(onnx_model: Any, features: int) -> "tuple[Any, Any]":
    """For each feature, the range that the model's scaler centres, or over which its trees decide; else -3 to 3."""
    from onnx import helper

    low, high = np.full(features, np.inf), np.full(features, -np.inf)
    for node in onnx_model.graph.node:
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Scaler" and len(attributes.get("offset", ())) == features:
            offset, scale = np.array(attributes["offset"]), np.array(attributes["scale"])
            width = 2 / np.where(scale == 0, 1, np.abs(scale))
            return offset - width, offset + width
        if node.op_type.startswith("TreeEnsemble") and "nodes_featureids" in attributes:
            ids, modes = np.array(attributes["nodes_featureids"]), np.array(attributes["nodes_modes"])
            values = np.array(attributes["nodes_values"]) if "nodes_values" in attributes else np.zeros(len(ids))
            is_branch = modes != b"LEAF"
            np.minimum.at(low, ids[is_branch], values[is_branch])
            np.maximum.at(high, ids[is_branch], values[is_branch])
    is_open = ~np.isfinite(low) | ~np.isfinite(high)
    low, high = np.where(is_open, -3, low), np.where(is_open, 3, high)
    margin = np.where(high > low, (high - low) / 4, 1)
    return low - margin, high + margin
