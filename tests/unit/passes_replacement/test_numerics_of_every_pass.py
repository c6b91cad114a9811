"""Every registered pass, with its default settings, computes like the source model: ten small networks each."""

import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from stoker.compiler.convert.converter import Converter
from stoker.compiler.passes import get_all_pass_names, get_pass
from stoker.compiler.passes.registry import pass_class, read_model
from stoker.compiler.passes.shape_inference import verify
from tests.fakes.graphs import run_onnx
from tests.fakes.networks import NETWORKS, Network

pytestmark = pytest.mark.slow

#: How far results may be off, relative to the largest of an output, where it is more than rounding in FP32.
TOLERANCES = {
    "float_to_half": 2e-2,
    "float_to_mixed": 2e-2,
    "float_to_fp8": 0.3,
    "float_to_int8": 0.1,
    "replace_erf_with_erfv2": 1e-3,
}
#: As much, where the source model computes in half precision itself.
HALF = 5e-3
#: Passes that have no default for any network: they work on nodes that the user names, on images alone, on transformers alone. Their own
#: tests run them.
WITHOUT_DEFAULT = ("eight_bits_io", "manual_sharding", "merge_matmul", "merge_matmul_add", "merge_moe", "packed_transformer")
#: Passes that compare the model with what it was made from.
COMPARING = ("check_with_fake_data", "layer_precision_compare")


@functools.cache
def expected_of(make: Callable[[], Network]) -> tuple[Network, dict[str, NDArray]]:
    network = make()
    network.model.CopyFrom(get_pass("unique_name_for_nodes")(get_pass("shape_inference")(network.model)))
    return network, run_onnx(network.model, network.feeds)


def fed(model: ir.Model, feeds: dict[str, NDArray]) -> dict[str, NDArray]:
    """`feeds` in the types that the inputs have now."""
    return {
        value.name or "": feeds[value.name or ""].astype(value.dtype.numpy()) for value in model.graph.inputs if value.dtype is not None
    }


#: Other tests register passes of their own.
OURS = [name for name in get_all_pass_names() if pass_class(name).__module__.startswith("stoker.compiler.passes.")]


@pytest.mark.parametrize("name", [name for name in OURS if name not in WITHOUT_DEFAULT])
def test_every_pass_preserves_the_results_of_networks(name: str) -> None:
    tolerance = TOLERANCES.get(name, 1e-4)
    for make in NETWORKS:
        network, expected = expected_of(make)
        model = read_model(network.model)
        before = ir.to_proto(model)
        settings = {"source": before} if name in COMPARING else {}
        if not get_pass(name, **settings).apply(model):
            assert ir.to_proto(model) == before, f"{make.__name__} changed, and the pass says it did not"
            continue
        verify(model, f"after {name}")
        results = run_onnx(model, fed(model, network.feeds))
        assert list(results) == list(expected)
        for output, wanted in expected.items():
            got = results[output]
            assert got.shape == wanted.shape
            if wanted.dtype.kind == "f":
                limit = max(tolerance, HALF if wanted.dtype == np.float16 else 0) * np.abs(wanted).max()
                np.testing.assert_allclose(
                    got.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=limit, err_msg=f"{make.__name__}, {output}"
                )
            else:
                np.testing.assert_array_equal(got, wanted, err_msg=f"{make.__name__}, {output}")


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 5e-3)])
@pytest.mark.parametrize("make", NETWORKS)
def test_default_passes_preserve_the_results_of_networks(make: Callable[[], Network], precision: str, tolerance: float) -> None:
    network, expected = expected_of(make)
    converted = read_model(Converter(precision=precision).convert_internal(network.model))
    results = run_onnx(converted, fed(converted, network.feeds))
    for output, wanted in expected.items():
        got, exact = results[output].astype(np.float64), wanted.astype(np.float64)
        limit = max(tolerance, HALF if wanted.dtype == np.float16 else 0) * np.abs(exact).max()
        np.testing.assert_allclose(got, exact, rtol=0, atol=limit, err_msg=output)
