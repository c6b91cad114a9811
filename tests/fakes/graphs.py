"""Small ONNX graphs for tests of passes: build one, feed it, run it before and after a pass, and compare.

Models are stamped with an IR version that every supported ONNX Runtime reads and with the opset that passes see. Whatever takes a model
takes an `onnx.ModelProto` or an `onnx_ir.Model`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.typing import DTypeLike, NDArray
from onnx import helper, numpy_helper

from stoker.compiler.passes import PassManager, get_pass
from stoker.compiler.passes.registry import INTERNAL_OPSET

IR_VERSION = 10

AnyModel = onnx.ModelProto | ir.Model
Feeds = Mapping[str, NDArray]
#: By name, whatever `np.asarray` takes.
Constants = Mapping[str, object]


def tensor(name: str, shape: Sequence[int | str | None] | None, dtype: DTypeLike = np.float32) -> onnx.ValueInfoProto:
    """The declaration of an input or output; a dimension may be a name or None."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Constants | Sequence[onnx.TensorProto] = (),
    *,
    opset: int = INTERNAL_OPSET,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model named `graph`; `initializers` by name, as arrays. It is not checked, so that tests can make bad ones."""
    if isinstance(initializers, Mapping):
        initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in initializers.items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), producer_name="stoker-tests")
    model.ir_version = IR_VERSION
    return model


def parse(text: str, initializers: Constants | None = None, *, opset: int = INTERNAL_OPSET) -> onnx.ModelProto:
    """A model from a graph in ONNX's own text form, such as `g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }`."""
    graph = onnx.parser.parse_graph(text)
    for name, array in (initializers or {}).items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="stoker-tests")
    model.ir_version = IR_VERSION
    return model


def as_proto(model: AnyModel) -> onnx.ModelProto:
    return model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)


def as_ir(model: AnyModel) -> ir.Model:
    """A model that passes can work on; a `ModelProto` is copied."""
    return model if isinstance(model, ir.Model) else ir.from_proto(model)


def all_graphs(model: AnyModel) -> list[onnx.GraphProto]:
    """The main graph and every graph in a node's attribute, outermost first."""
    found = [as_proto(model).graph]
    for graph in found:
        for node in graph.node:
            for attribute in node.attribute:
                found += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)
    return found


def op_types(model: AnyModel) -> list[str]:
    """Operators in the order of the nodes; those of sub-graphs follow those of the graphs around them."""
    return [node.op_type for graph in all_graphs(model) for node in graph.node]


def initializers_of(model: AnyModel) -> dict[str, NDArray]:
    return {each.name: numpy_helper.to_array(each) for graph in all_graphs(model) for each in graph.initializer}


def input_names(model: AnyModel) -> list[str]:
    """The inputs without an initialiser, which must be fed."""
    graph = as_proto(model).graph
    given = {each.name for each in graph.initializer}
    return [each.name for each in graph.input if each.name not in given]


def random_feeds(model: AnyModel, seed: int = 0, sizes: Mapping[str, int] | None = None, free_size: int = 2) -> dict[str, NDArray]:
    """Normal floats, integers from 0 to 3, random booleans; a variable dimension has `sizes[its name]`, else `free_size`."""
    generator = np.random.default_rng(seed)
    graph = as_proto(model).graph
    wanted = set(input_names(model))
    feeds: dict[str, NDArray] = {}
    for declared in graph.input:
        if declared.name not in wanted:
            continue
        kind = declared.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else (sizes or {}).get(d.dim_param, free_size) for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind == "b":
            values: NDArray = generator.integers(0, 2, shape)
        elif dtype.kind in "iu":
            values = generator.integers(0, 4, shape)
        else:
            values = generator.standard_normal(shape)
        feeds[declared.name] = np.asarray(values).astype(dtype)
    return feeds


def run_onnx(model: AnyModel, feeds: Feeds) -> dict[str, NDArray]:
    """Runs on ONNX Runtime's CPU kernels, node by node as the graph stands: its own optimisations are off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(as_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def assert_same_results(before: AnyModel, after: AnyModel, feeds: Feeds | None = None, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Both models have outputs of the same names, dtypes, shapes and, within the tolerance, values; both 0 means bit for bit, NaN = NaN."""
    feeds = random_feeds(before) if feeds is None else feeds
    expected, actual = run_onnx(before, feeds), run_onnx(after, feeds)
    assert list(actual) == list(expected)
    for name, wanted in expected.items():
        got = actual[name]
        assert got.dtype == wanted.dtype, f"output {name}: {got.dtype} instead of {wanted.dtype}"
        assert got.shape == wanted.shape, f"output {name}: {got.shape} instead of {wanted.shape}"
        if rtol == 0 and atol == 0:
            assert got.tobytes() == wanted.tobytes() or np.array_equal(got, wanted, equal_nan=wanted.dtype.kind in "fc"), f"output {name}"
        else:
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol, err_msg=f"output {name}")


def assert_valid(model: AnyModel) -> None:
    """ONNX's checker and strict shape inference accept it."""
    onnx.checker.check_model(as_proto(model), full_check=True)


def after_pass(name: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """The result of pass `name` on a model with known shapes: valid, and unchanged by a second run."""
    manager = PassManager(["shape_inference", name], verify_each=True)
    made = manager.run(model)
    assert_valid(made)
    assert op_types(manager.run(made)) == op_types(made)
    return made


def is_kept(name: str, model: onnx.ModelProto) -> bool:
    """Whether pass `name` leaves the model with known shapes unchanged, and reports so."""
    graph = get_pass("shape_inference")(as_ir(model))
    return not get_pass(name).apply(graph) and op_types(graph) == op_types(model)
