"""From ONNX to what each accelerator runs: offline and target-neutral."""
