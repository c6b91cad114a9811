"""`virtual_graph_mode=auto` spreads a model without marks over `num_ipus`."""

import numpy as np
import onnx
import pytest

from stoker.backends.ipu.compile.compiler import as_source, compile_program
from stoker.backends.ipu.compile.memory import OutOfTileMemory
from stoker.compiler.options import CompilerOptions
from tests.fakes.graphs import parse


def chain(layers: int = 4) -> onnx.ModelProto:
    nodes = " ".join(f"x{at + 1} = MatMul(x{at}, w{at})" for at in range(layers))
    weights = {f"w{at}": np.full((512, 512), at, np.float32) for at in range(layers)}
    return parse(f"g (float[1,512] x0) => (float[1,512] x{layers}) {{ {nodes} }}", weights)


def ipus_of(options: CompilerOptions, layers: int = 4) -> list[int]:
    program, _ = compile_program([as_source(chain(layers))], options)
    return [step.ipu for step in program.graphs[0].steps if step.op_type == "MatMul"]


def test_model_that_fits_no_single_ipu_is_spread() -> None:
    with pytest.raises(OutOfTileMemory, match="num_ipus=2 virtual_graph_mode=auto"):
        compile_program([as_source(chain())], CompilerOptions(tiles_per_ipu=4))
    found = ipus_of(CompilerOptions(tiles_per_ipu=4, num_ipus=4, virtual_graph_mode="auto"))
    assert sorted(found) == found
    assert set(found) == {0, 1, 2, 3}


def test_ipus_without_automatic_mode_are_named_as_unused(caplog: pytest.LogCaptureFixture) -> None:
    assert set(ipus_of(CompilerOptions(num_ipus=2))) == {0}
    assert "the model uses 1 of 2 IPUs: manual_sharding_config, or virtual_graph_mode=auto" in caplog.text


def test_fewer_nodes_than_ipus_leave_no_gap() -> None:
    assert set(ipus_of(CompilerOptions(num_ipus=4, virtual_graph_mode="auto"), layers=1)) == {0}


def test_each_ipu_is_a_stage_of_a_pipeline() -> None:
    options = CompilerOptions(num_ipus=2, virtual_graph_mode="auto", enable_pipelining=True, batches_per_step=2)
    program, _ = compile_program([as_source(chain())], options)
    assert program.pipeline_stages == 2
    assert {(step.ipu, step.stage) for step in program.graphs[0].steps if step.op_type == "MatMul"} == {(0, 0), (1, 1)}
