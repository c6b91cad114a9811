"""ONNX's own tests of single operators, through the converter and the compilers: nothing is changed silently, nothing fails strangely."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.opset import convert_to_internal
from stoker.compiler.convert.source import checked
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel, find_target
from tests.fakes.node_cases import NodeCase, changes_of_operators, node_cases, quiet_logs

pytestmark = pytest.mark.slow

#: So that no single test runs for a minute.
PARTS = 6
OLDEST_OPSET = 7
#: ONNX Runtime gives another `qk_matmul_output` than ONNX expects (infinities where a mask is added); `Y` agrees.
WRONG_IN_ONNXRUNTIME = frozenset(f"test_attention_4d_with_past_and_present_qk_matmul_bias_{rank}d_mask_causal" for rank in (3, 4))
RANDOM = ("test_bernoulli",)
#: Refused at the opsets named, with a reason: no newer operator means the same.
REJECTED = {("test_dropout_default_mask", 10), ("test_dropout_default_mask", 11)}


def run(model: onnx.ModelProto, feeds: dict[str, NDArray]) -> list[NDArray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    return [np.asarray(each) for each in session.run(None, feeds)]


def is_same(found: NDArray, wanted: NDArray) -> bool:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if wanted.dtype.kind in "OUS":
        return bool(np.array_equal(found, wanted))
    with np.errstate(invalid="ignore"):
        return bool(np.allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=1e-3, atol=1e-5, equal_nan=True))


def opsets_of(case: NodeCase) -> list[int]:
    """Its own, and each before it that some operator of it changed at, with the one before that."""
    changes = {version for node in case.model.graph.node for version in changes_of_operators().get(node.op_type, ())}
    near = {opset for version in changes for opset in (version, version - 1)}
    return sorted({opset for opset in near if OLDEST_OPSET <= opset < case.opset} | ({case.opset} if case.opset >= OLDEST_OPSET else set()))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operator_of_every_opset_computes_the_same_after_conversion(part: int) -> None:
    wrong, compared = [], 0
    with quiet_logs():
        for case in node_cases()[part::PARTS]:
            if case.feeds is None or case.name.startswith(RANDOM) or case.name in WRONG_IN_ONNXRUNTIME:
                continue
            for opset in opsets_of(case):
                try:
                    model = checked(case.at(opset), "the model")
                    wanted = run(model, case.feeds)
                except Exception:
                    continue
                compared += 1
                if (case.name, opset) in REJECTED:
                    with pytest.raises(CompileError):
                        convert_to_internal(model)
                    continue
                try:
                    found = run(convert_to_internal(model), case.feeds)
                except Exception as error:
                    wrong.append(f"{case.name} at {opset}: {type(error).__name__}: {error}")
                    continue
                if not all(is_same(mine, theirs) for mine, theirs in zip(found, wanted, strict=True)):
                    wrong.append(f"{case.name} at {opset}: another result")
    assert wrong == []
    assert compared > 200


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("target_name", "precision"), [("ipu", "fp32"), ("ipu", "fp16"), ("gcu", "fp32"), ("gcu", "fp16")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operator_compiles_or_is_refused(target_name: str, precision: str, part: int, tmp_path: Path) -> None:
    """No other exception reaches the user, and the compilers prepare the lowered graph, so that compiled models load."""
    target = find_target(target_name)
    strange, compiled = [], 0
    converter = Converter(precision=precision, skip_passes=target.skip_passes)
    with quiet_logs():
        for case in node_cases()[part::PARTS]:
            try:
                internal = converter.convert_internal(case.model)
                converter.to_output(internal)
                inputs = [value.name for value in internal.graph.input]
                source = SourceModel(model=internal, name="m", inputs=inputs, source=case.model, precision=precision)
                target.export([source], CompilerOptions(), tmp_path / "artefact")
                compiled += 1
            except CompileError:
                continue
            except Exception as error:
                strange.append(f"{case.name}: {type(error).__name__}: {error}")
    assert strange == []
    assert compiled > 40
