"""Folders of a model hub: config.json, weights and tokenizer, exported by optimum without access to the network."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from stoker.cli.add.child.job import Converted, Job, Unusable
from stoker.cli.add.child.samples import tensor_samples

#: Files beside the weights that belong to the model and are copied into the version's folder.
_BESIDE = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "preprocessor_config.json", "generation_config.json",
)  # fmt: skip
#: By the ending of the architecture's class in config.json, the task of optimum.
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForMultipleChoice": "multiple-choice",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "semantic-segmentation",
    "ForAudioClassification": "audio-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "Model": "feature-extraction",
}


def convert_hub(job: Job) -> Converted:
    """Exports the model of the folder for the task of its architecture."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import optimum.version
    import torch
    import transformers
    from optimum.exporters.onnx import main_export
    from optimum.exporters.tasks import TasksManager

    facts = json.loads((job.source / "config.json").read_text(encoding="utf-8"))
    architecture = (facts.get("architectures") or [""])[0]
    task = next((task for ending, task in _TASKS.items() if architecture.endswith(ending)), None)
    if task is None:
        known = ", ".join(f"...{ending}" for ending in _TASKS)
        raise Unusable(f"config.json names the architecture '{architecture}'; expected one of {known}")
    if "auto_map" in facts:
        raise Unusable("config.json names code of the folder (auto_map), which is not run: export the model in Python")
    job.step(f"exporting {architecture} for {task} with optimum {optimum.version.__version__}")
    exported = job.scratch / "exported"
    main_export(
        str(job.source), output=str(exported), task=task, device="cpu", do_validation=False, local_files_only=True, trust_remote_code=False
    )
    files = sorted(path.name for path in exported.glob("*.onnx"))
    if files != ["model.onnx"]:
        raise Unusable(f"the export has several graphs ({', '.join(files)}); a model of Stoker is one graph: write an ensemble or model.py")
    for path in exported.iterdir():
        if path.name.startswith("model.onnx") or path.name in _BESIDE:
            shutil.move(path, job.folder / path.name)
    job.step("loading the source with transformers")
    model = TasksManager.get_model_from_task(task, str(job.source), framework="pt", local_files_only=True).eval()
    inputs, outputs = _interface(job.target)
    samples = [_legal(sample, model) for sample in tensor_samples(job, inputs)]
    job.step("computing the source's outputs")
    found = []
    with torch.inference_mode():
        for sample in samples:
            result = model(**{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in sample.items()})
            found.append([result[name].float().numpy() if name in result else None for name in outputs])
    names = [str(name) for _, name in sorted((int(at), name) for at, name in (facts.get("id2label") or {}).items())]
    is_classifier = task.endswith("classification")
    return Converted(
        framework=f"transformers {transformers.__version__}",
        model=architecture,
        converter=f"optimum {optimum.version.__version__}",
        inputs=samples,
        outputs=found,
        labels={0: names} if names and is_classifier else {},
        notes=[f"task {task}; the version's folder has the tokenizer too"]
        if (job.folder / "tokenizer.json").exists()
        else [f"task {task}"],
    )


def _interface(path: Path) -> "tuple[dict[str, tuple[str, tuple[int, ...]]], list[str]]":
    """The inputs (type and dims of one row) and the names of the outputs of an ONNX file."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    inputs = {}
    for each in graph.input:
        tensor = each.type.tensor_type
        dims = tuple(dim.dim_value or -1 for dim in tensor.shape.dim)
        inputs[each.name] = (onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, dims[1:])
    return inputs, [each.name for each in graph.output]


def _legal(sample: "dict[str, Any]", model: Any) -> "dict[str, Any]":
    """The sample with masks of ones, types of zero, and ids below the size of the vocabulary."""
    generator = np.random.default_rng(1)
    size = int(getattr(model.config, "vocab_size", 0) or 0)
    legal = {}
    for name, array in sample.items():
        if name.endswith("mask"):
            legal[name] = np.ones_like(array)
        elif name == "token_type_ids":
            legal[name] = np.zeros_like(array)
        elif name.endswith("ids") and size:
            legal[name] = generator.integers(0, size, array.shape).astype(array.dtype)
        else:
            legal[name] = array
    return legal
