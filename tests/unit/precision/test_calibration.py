"""Losses, samples and the search of formats and scales."""

import math
import pickle
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.compiler.errors import OptionError, ShapeError
from stoker.compiler.precision.calibration import (
    LOSSES,
    LayerChoice,
    TensorChoice,
    choose_spec,
    cosine_distance,
    kld,
    loss_of,
    noise_to_signal,
    snr_db,
    worst_layers,
)
from stoker.compiler.precision.float8 import Float8Format, round_to_float8
from stoker.compiler.precision.representation import Float8Spec
from stoker.compiler.precision.samples import batches_of, load_samples, random_batches

F143, F152 = Float8Format.F143, Float8Format.F152
NORMAL = np.random.default_rng(3).standard_normal(4096).astype(np.float32)


def declared(name: str, shape: list[int | str], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


@pytest.mark.parametrize("name", LOSSES)
def test_loss_is_zero_without_rounding_and_grows_with_it(name: str) -> None:
    loss = LOSSES[name]
    on_the_grid = round_to_float8(NORMAL, F143, -5)
    fine, coarse = (round_to_float8(NORMAL, F143, scale) for scale in (-5, 4))
    assert loss(NORMAL, NORMAL) <= (1e-12 if name != "kld" else 1.0)
    assert 0 <= loss(NORMAL, fine) < loss(NORMAL, coarse)
    assert loss(on_the_grid, on_the_grid) <= 1e-12
    assert loss(np.zeros(4, np.float32), np.zeros(4, np.float32)) == 0


def test_snr_and_cosine_distance_equal_values_computed_by_hand() -> None:
    exact, rounded = np.array([3, 4], np.float32), np.array([3, 4.5], np.float32)
    assert noise_to_signal(exact, rounded) == pytest.approx(0.25 / 25)
    assert snr_db(exact, rounded) == pytest.approx(20)
    assert snr_db(exact, exact) == math.inf
    assert cosine_distance(np.array([1, 0], np.float32), np.array([0, 2], np.float32)) == pytest.approx(1)
    assert cosine_distance(exact, -exact) == pytest.approx(2)
    assert cosine_distance(exact, exact * 0) == 1


def test_kld_detects_values_merged_by_rounding() -> None:
    exact = np.repeat(np.array([1, 2, 3, 4], np.float32), [8, 4, 2, 2])
    merged = np.where(exact > 2, np.float32(4), exact)
    assert kld(exact, exact) == 0
    assert kld(exact, merged) == 0  # 3 and 4 are equally frequent: their even spread is the truth
    merged = np.where(exact < 3, np.float32(1), exact)
    expected = 8 / 16 * math.log(8 / 6) + 4 / 16 * math.log(4 / 6)
    assert kld(exact, merged) == pytest.approx(expected)


@given(st.integers(-20, 8), st.sampled_from(["mse", "mae", "snr", "cos_dist"]))
def test_chosen_scale_is_never_worse_than_any_single_one(power: int, name: str) -> None:
    values = NORMAL[:512] * np.float32(2.0**power)
    loss = LOSSES[name]
    chosen = choose_spec("t", values, Float8Spec(F143, -1), loss, data_type=ir.DataType.FLOAT16)
    assert -24 <= chosen.spec.scale < 16
    every = [loss(values, round_to_float8(values, each, scale)) for each in Float8Format for scale in range(-24, 16)]
    assert chosen.loss == pytest.approx(min(every), rel=1e-9)


def test_wide_tensors_get_more_exponent_and_narrow_ones_more_mantissa() -> None:
    wide = np.append(NORMAL * np.float32(1e-3), np.float32(1024))
    start = Float8Spec(F143, -1)
    assert choose_spec("t", wide, start, loss_of("mse"), data_type=ir.DataType.FLOAT).spec.float8_format is F152
    assert choose_spec("t", NORMAL, start, loss_of("mse"), data_type=ir.DataType.FLOAT).spec.float8_format is F143


def test_tensor_of_zeros_keeps_its_given_spec() -> None:
    start = Float8Spec(F152, 7)
    assert choose_spec("t", np.zeros(8, np.float32), start, loss_of("kld"), data_type=ir.DataType.FLOAT).spec == start


def test_unknown_loss_is_refused() -> None:
    with pytest.raises(OptionError, match="'psnr' is not known; expected one of mse, mae, snr, kld, cos_dist, gptq"):
        loss_of("psnr")


def test_worst_layers_are_the_noisiest_and_never_unknown_ones() -> None:
    def layer(noise: float) -> LayerChoice:
        return LayerChoice(
            node="n", op_type="Conv", activation=None, weight=TensorChoice(tensor="w", spec=Float8Spec(F143, 0), noise=noise)
        )

    assert worst_layers([layer(0.1), layer(math.nan), layer(0.3), layer(0.2)], 2) == {2, 3}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_of_arrays_is_read(tmp_path: Path, protocol: int) -> None:
    data: dict[str, np.ndarray] = {
        "x": NORMAL[:6].reshape(2, 3),
        "ids": np.arange(4),
        "flag": np.array(True),
        "turned": np.asfortranarray(np.eye(3, 2)),
    }
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps(data, protocol))
    loaded = load_samples(path)
    assert list(loaded) == list(data)
    for name, array in data.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


def test_pickle_written_by_numpy_1_is_read(tmp_path: Path) -> None:
    content = pickle.dumps({"x": NORMAL[:4]}, 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    path = tmp_path / "data.pkl"
    path.write_bytes(content)
    np.testing.assert_array_equal(load_samples(path)["x"], NORMAL[:4])


def test_npz_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=NORMAL)
    np.testing.assert_array_equal(load_samples(tmp_path / "data.npz")["x"], NORMAL)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch owned",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"x": Hostile()}), r"it holds a (posix|nt).system; only numpy arrays are read"),
        (pickle.dumps([np.zeros(3)]), "holds a list; expected a dictionary of input name to array"),
        (pickle.dumps({}), "holds a dict; expected"),
        (pickle.dumps({"x": "text"}), "entry 'x' is of kind str; expected an array of numbers"),
        (pickle.dumps({"x": np.array(["a"])}), "entry 'x' is of kind array of <U1; expected an array of numbers"),
        (pickle.dumps({"x": np.zeros(3)})[:-9], "cannot be read"),
        (b"no pickle", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_pickle_of_anything_but_arrays_is_refused_and_never_run(
    tmp_path: Path, content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data.pkl"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=message):
        load_samples(path)
    assert not (tmp_path / "owned").exists()


def test_missing_file_is_named() -> None:
    with pytest.raises(OptionError, match=r"calibration data 'nowhere.pkl': No such file"):
        load_samples("nowhere.pkl")


@pytest.mark.parametrize(("shape", "count"), [((2, 3), 1), ((8, 3), 4), ((5, 2, 3), 5)])
def test_data_is_split_into_batches_of_the_models_size_and_type(shape: tuple[int, ...], count: int) -> None:
    data = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    batches = batches_of([declared("x", [2, 3], ir.DataType.FLOAT16)], {"x": data})
    assert len(batches) == count
    assert all(each["x"].shape == (2, 3) and each["x"].dtype == np.float16 for each in batches)
    np.testing.assert_array_equal(np.concatenate([each["x"] for each in batches]).reshape(shape), data)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"x": np.zeros((3, 3)), "y": np.zeros(2)}, ShapeError, r"input 'x' has shape \[3, 3\]; expected \[2, 3\]"),
        ({"x": np.zeros((2, 3))}, OptionError, r"nothing for input\(s\) y"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2), "z": np.zeros(1)}, OptionError, "has z; the model's inputs are x, y"),
        ({"x": np.zeros((4, 3)), "y": np.zeros(2)}, OptionError, "different numbers of samples: 2 of x, 1 of y"),
    ],
)
def test_data_that_contradicts_the_inputs_is_refused(data: dict[str, np.ndarray], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        batches_of([declared("x", [2, 3]), declared("y", [2])], data)


def test_random_batches_have_small_indices_and_need_fixed_shapes() -> None:
    [first, second] = random_batches([declared("x", [2, 3]), declared("ids", [8], ir.DataType.INT32)], 2)
    assert first["x"].dtype == np.float32
    assert not np.array_equal(first["x"], second["x"])
    assert set(first["ids"].tolist()) <= {0, 1}
    with pytest.raises(ShapeError, match=r"input 'x' has shape .*; its dimensions must be fixed"):
        random_batches([declared("x", ["N", 3])])


def test_file_that_is_neither_archive_nor_pickle_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"hello world")
    with pytest.raises(OptionError, match=r"cannot be read: it is neither an \.npz file nor a whole pickle$"):
        load_samples(tmp_path / "data")
