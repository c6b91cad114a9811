import pytest

from stoker.backends.api.agreement import check_agreement, disagreements
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import FileTensor, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType

FP32 = DataType.FP32


def check(
    dims: tuple[int, ...], shape: tuple[int, ...] | None, max_batch_size: int = 8, *, out: tuple[int, ...] | None = None, **spec: object
) -> int | None:
    """An input `x` of `dims` and an output `y` against a file whose input has `shape` (its output `out`, or any)."""
    served = ModelSignature((TensorSpec("x", FP32, dims, **spec),), (TensorSpec("y", FP32, (2,)),), max_batch_size)  # type: ignore[arg-type]
    return check_agreement(served, [FileTensor("x", FP32, shape)], [FileTensor("y", FP32, out)])


@pytest.mark.parametrize(
    ("dims", "shape", "max_batch_size"),
    [
        ((3, 4), (-1, 3, 4), 8),
        ((3, 4), (-1, -1, 4), 8),
        ((-1, 4), (-1, -1, 4), 8),
        ((), (-1,), 8),
        ((3,), None, 8),
        ((3,), (3,), 0),
        ((), (), 0),
        ((-1,), (-1,), 0),
        ((0,), (-1, 0), 8),
    ],
)
def test_agreeing_signatures_are_accepted(dims: tuple[int, ...], shape: tuple[int, ...] | None, max_batch_size: int) -> None:
    assert check(dims, shape, max_batch_size) is None


def test_batch_fixed_to_the_maximum_makes_the_device_static() -> None:
    assert check((3,), (4, 3), 4) == 4
    assert check((3,), (1, 3), 1) == 1


def test_batch_fixed_on_the_output_side_counts_too() -> None:
    assert check((3,), (-1, 3), 4, out=(4, 2)) == 4


@pytest.mark.parametrize(
    ("dims", "shape", "max_batch_size", "text"),
    [
        ((3,), (4, 3), 8, "its batch is fixed to 4, which does not go with max_batch_size 8: write 4, or 0"),
        ((3,), (), 8, "it has no batch dimension; max_batch_size 8 needs one: write 0"),
        ((3,), (-1, 5), 8, "has batch and dims [-1, 3] in the configuration and shape [-1, 5] in the model file"),
        ((-1,), (-1, 5), 8, "has batch and dims [-1, -1]"),
        ((3, 1), (-1, 3), 8, "has batch and dims [-1, 3, 1]"),
        ((3,), (4,), 0, "has dims [3] in the configuration and shape [4]"),
        ((3,), (-1, 3), 0, "has dims [3] in the configuration and shape [-1, 3]"),
    ],
)
def test_different_shapes_are_reported_with_both_sides(
    dims: tuple[int, ...], shape: tuple[int, ...], max_batch_size: int, text: str
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        check(dims, shape, max_batch_size)
    assert "input 'x'" in caught.value.message
    assert text in caught.value.message


def test_reshaped_dims_are_compared_with_the_file() -> None:
    assert check((1,), (-1,), reshape=()) is None
    with pytest.raises(ModelLoadError, match="input 'x' has batch and dims"):
        check((1,), (-1, 1), reshape=())


def test_names_and_types_must_equal_those_of_the_file() -> None:
    x, y = FileTensor("x", FP32, None), FileTensor("y", FP32, None)
    with pytest.raises(ModelLoadError, match="input 'z' is not in the model file; its inputs: x"):
        check_agreement(ModelSignature((TensorSpec("z", FP32, (1,)),), (), 8), [x], [y])
    with pytest.raises(ModelLoadError, match="output 'z' is not in the model file; its outputs: y"):
        check_agreement(ModelSignature((TensorSpec("x", FP32, (1,)),), (TensorSpec("z", FP32, (1,)),), 8), [x], [y])
    with pytest.raises(ModelLoadError, match="input 'x' is TYPE_STRING in the configuration and TYPE_FP32 in the model file"):
        check_agreement(ModelSignature((TensorSpec("x", DataType.BYTES, (1,)),), (), 8), [x], [y])


def test_every_required_input_must_be_served_and_outputs_may_be_omitted() -> None:
    x, w = FileTensor("x", FP32, None), FileTensor("w", FP32, None)
    served = ModelSignature((TensorSpec("x", FP32, (1,)),), (), 8)
    with pytest.raises(ModelLoadError, match="needs input 'w'"):
        check_agreement(served, [x, w], [])
    assert check_agreement(served, [x, FileTensor("w", FP32, None, optional=True)], [w]) is None


def test_input_is_optional_only_if_it_is_optional_in_the_file() -> None:
    served = ModelSignature((TensorSpec("x", FP32, (1,), optional=True),), (), 8)
    with pytest.raises(ModelLoadError, match="optional in the configuration, but the model file cannot do without"):
        check_agreement(served, [FileTensor("x", FP32, None)], [])
    assert check_agreement(served, [FileTensor("x", FP32, None, optional=True)], []) is None


def test_every_disagreement_names_its_field() -> None:
    x, w, y = FileTensor("x", FP32, (-1, 3)), FileTensor("w", FP32, None), FileTensor("y", FP32, (4, 2))
    served = ModelSignature((TensorSpec("x", DataType.INT8, (5,)),), (TensorSpec("z", FP32, (1,)), TensorSpec("y", FP32, (2,))), 8)
    fields = [violation.field for violation in disagreements(served, [x, w], [y])]
    assert fields == ["input[0].data_type", "input[0].dims", "output[0].name", "max_batch_size", "input"]


def test_fixed_batch_of_an_unserved_tensor_has_no_effect() -> None:
    served = ModelSignature((TensorSpec("x", FP32, (3,)),), (), 4)
    assert check_agreement(served, [FileTensor("x", FP32, (-1, 3))], [FileTensor("y", FP32, (1, 2))]) is None
