"""Files of PaddlePaddle, converted by paddle2onnx."""

from stoker.cli.add.child.job import Converted, Job, Unusable


def convert_paddle(job: Job) -> Converted:
    """Converts a .pdmodel file with the .pdiparams file of the same name. The outputs are not compared."""
    import paddle2onnx

    weights = job.source.with_suffix(".pdiparams")
    if not weights.is_file():
        raise Unusable(f"{weights.name} is missing beside {job.source.name}")
    job.step("converting with paddle2onnx")
    paddle2onnx.export(str(job.source), str(weights), str(job.target))
    return Converted(
        framework="PaddlePaddle",
        model="inference model",
        converter=f"paddle2onnx {paddle2onnx.__version__}",
        inputs=[],
        outputs=[],
        notes=["the outputs were not compared with the source's"],
    )
