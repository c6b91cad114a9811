"""tritonclient against the digits model on ONNX Runtime and compiled for a simulated IPU: no client can distinguish their form."""

import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

TOLERANCE = 0.02  # of probabilities: FP16 inside


def ask(module, client, model, images):
    tensor = module.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy("scores")


def refusal(module, client, images):
    """The server's error for a batch that is too large."""
    try:
        ask(module, client, "digits_ipu", images)
    except module.InferenceServerException as error:
        return str(error)
    raise AssertionError(f"{len(images)} rows were taken")


def main():
    heldout = np.load(sys.argv[3])
    images, truth = heldout["images"].astype(np.float32), heldout["digits"]
    for module, address in ((grpc, sys.argv[1]), (http, sys.argv[2])):
        client = module.InferenceServerClient(address)
        described = [
            client.get_model_metadata(model, **({"as_json": True} if module is grpc else {})) for model in ("digits", "digits_ipu")
        ]
        assert described[0]["inputs"] == described[1]["inputs"], described
        assert described[0]["outputs"] == described[1]["outputs"], described
        assert described[1]["platform"] == "poplar"
        for rows in (1, 3, 31, 32):
            expected, found = (ask(module, client, model, images[:rows]) for model in ("digits", "digits_ipu"))
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        right = dict.fromkeys(("digits", "digits_ipu"), 0)
        for model in right:
            for at in range(0, len(images), 32):
                right[model] += int((ask(module, client, model, images[at : at + 32]).argmax(axis=1) == truth[at : at + 32]).sum())
        assert abs(right["digits"] - right["digits_ipu"]) <= 0.005 * len(images), right
        assert "32" in refusal(module, client, images[:33])
        client.close()
    print("ok")


if __name__ == "__main__":
    main()
