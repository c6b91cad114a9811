"""Files of PyTorch: TorchScript, exported programs (.pt2), and pickled modules, which need the user's consent."""

from typing import Any

import numpy as np

from stoker.cli.add.child.job import Converted, Job, Unusable, unknown_class, untrusted
from stoker.cli.add.child.samples import tensor_samples

#: Opset of the exporter for TorchScript.
_OPSET = 17


def convert_torchscript(job: Job) -> Converted:
    """Loads a file of `torch.jit.save`; the shapes of its inputs come from `--input` or `--sample`."""
    import torch

    job.step("loading the TorchScript module")
    module = torch.jit.load(str(job.source), map_location="cpu").eval()
    names = [each.debugName() for each in list(module.graph.inputs())[1:]]
    samples = _named_samples(job, names)
    inputs = list(samples[-1])
    job.step("exporting with torch.onnx")
    arguments = tuple(torch.from_numpy(array) for array in samples[-1].values())
    with torch.inference_mode():
        found = module(*arguments)
    open_axes = {name: {0: "batch", **{axis + 1: f"{name}_{axis}" for axis in _open_axes(job, name)}} for name in inputs}
    outputs = [f"output_{at}" if at else "output" for at in range(len(_flat(found)))]
    torch.onnx.export(
        module,
        arguments,
        str(job.target),
        dynamo=False,
        opset_version=_OPSET,
        input_names=inputs,
        output_names=outputs,
        dynamic_axes={**open_axes, **{name: {0: "batch"} for name in outputs}},
    )
    return _finished(job, module, "TorchScript module", samples)


def convert_pt2(job: Job) -> Converted:
    """Loads a file of `torch.export.save`, which stores shapes and says which dims are open."""
    import torch

    job.step("loading the exported program")
    program = torch.export.load(str(job.source))
    module = program.module()
    inputs: dict[str, tuple[str, tuple[int, ...]]] = {}
    rows: int | None = None
    specs = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    for name in program.graph_signature.user_inputs:
        value = specs[name]
        dims = tuple(size if isinstance(size, int) else -1 for size in value.shape)
        inputs[name] = (str(value.dtype).partition(".")[2], dims[1:])
        if dims and dims[0] >= 0:
            rows = dims[0]
    samples = tensor_samples(job, inputs, rows=rows)
    job.step("exporting with torch.onnx")
    torch.onnx.export(program, dynamo=True).save(str(job.target))
    found = _finished(job, module, "exported program", samples)
    if rows is not None:
        found.notes.append(
            f"the program was exported for batches of {rows}; torch.export.export(..., dynamic_shapes=...) leaves the batch open"
        )
    return found


def convert_torch_pickle(job: Job) -> Converted:
    """Loads a file of `torch.save`: a module; weights alone are rejected."""
    import torch

    job.step("reading the file without its code")
    try:
        weights = torch.load(str(job.source), map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - it holds more than weights, or is damaged, which the next load tells
        weights = None
    if isinstance(weights, dict):
        raise Unusable(
            "the file holds weights alone (a state dict). In Python, load them into your module, and save the program: "
            "torch.export.save(torch.export.export(module, (example,), "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)), 'model.pt2'); then stoker add model.pt2"
        )
    if not job.is_trusted:
        raise untrusted()
    job.step("loading the pickled module")
    try:
        module = torch.load(str(job.source), map_location="cpu", weights_only=False)
    except AttributeError as error:
        raise unknown_class(error) from error
    return from_module(job, module)


def from_module(job: Job, module: Any) -> Converted:
    """Converts a `torch.nn.Module`; the shapes of its inputs come from `--input` or `--sample`."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise Unusable(f"the pickle holds a {type(module).__name__}, expected a torch.nn.Module")
    samples = _named_samples(job, [])
    job.step("exporting with torch.onnx")
    inputs = list(samples[-1])
    arguments = tuple(torch.from_numpy(array) for array in samples[-1].values())
    shapes = tuple({0: torch.export.Dim("batch")} for _ in arguments)
    module.eval()
    torch.onnx.export(module, arguments, str(job.target), dynamo=True, input_names=inputs, dynamic_shapes=shapes)
    return _finished(job, module, type(module).__name__, samples)


def _named_samples(job: Job, names: "list[str]") -> "list[dict[str, Any]]":
    """Samples by the names of `--input`, else by `names`, the module's own."""
    if not job.inputs and job.sample is None:
        raise Unusable(
            "the file does not store the shapes of its inputs. Give those of one row, for example --input image=3,224,224, "
            "or rows of a file: --sample rows.npy"
        )
    if not job.inputs:
        from stoker.cli.add.child.samples import arrays_of

        assert job.sample is not None
        found = arrays_of(job.sample, names or ["input"])
        inputs = {name: (str(array.dtype), tuple(array.shape[1:])) for name, array in found.items()}
    else:
        inputs = dict(job.inputs)
    return tensor_samples(job, inputs)


def _open_axes(job: Job, name: str) -> "list[int]":
    return [axis for axis, size in enumerate(job.inputs.get(name, ("", ()))[1]) if size < 0]


def _flat(found: Any) -> "list[Any]":
    """The tensors of a module's result, in order."""
    if isinstance(found, dict):
        return [each for value in found.values() for each in _flat(value)]
    if isinstance(found, (list, tuple)):
        return [each for value in found for each in _flat(value)]
    return [] if found is None else [found]


def _finished(job: Job, module: Any, kind: str, samples: "list[dict[str, Any]]") -> Converted:
    import onnx
    import torch

    job.step("computing the source's outputs")
    # The exporter may have changed the names; the order is the module's.
    names = [each.name for each in onnx.load(str(job.target), load_external_data=False).graph.input]
    outputs = []
    with torch.inference_mode():
        for sample in samples:
            found = module(*(torch.from_numpy(np.ascontiguousarray(array)) for array in sample.values()))
            outputs.append(
                [each.detach().cpu().float().numpy() if each.is_floating_point() else each.cpu().numpy() for each in _flat(found)]
            )
    return Converted(
        framework=f"PyTorch {torch.__version__}",
        model=kind,
        converter=f"torch.onnx {torch.__version__}",
        inputs=[dict(zip(names, sample.values())) for sample in samples],  # noqa: B905 - Python 3.9
        outputs=outputs,
    )
