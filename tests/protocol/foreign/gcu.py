"""tritonclient against the digits model on ONNX Runtime and compiled for a simulated GCU: no client can distinguish them."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

TOLERANCE = 1e-5  # of probabilities: FP32 on both
MODELS = ("digits", "digits_gcu")


def ask(module, client, model, images):
    tensor = module.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy("scores")


def refusal(module, client, images):
    """The server's error for a request that it cannot accept."""
    try:
        ask(module, client, "digits_gcu", images)
    except module.InferenceServerException as error:
        return str(error)
    raise AssertionError(f"{images.shape} was taken")


def main():
    heldout = np.load(sys.argv[3])
    images, truth = heldout["images"].astype(np.float32), heldout["digits"]
    for module, address in ((grpc, sys.argv[1]), (http, sys.argv[2])):
        client = module.InferenceServerClient(address)
        described = [client.get_model_metadata(model, **({"as_json": True} if module is grpc else {})) for model in MODELS]
        assert described[0]["inputs"] == described[1]["inputs"], described
        assert described[0]["outputs"] == described[1]["outputs"], described
        assert described[1]["platform"] == "topsinference"
        for rows in (1, 3, 8, 9, 31, 32):
            expected, found = (ask(module, client, model, images[:rows]) for model in MODELS)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        right = dict.fromkeys(MODELS, 0)
        for model in MODELS:
            for at in range(0, len(images), 32):
                right[model] += int((ask(module, client, model, images[at : at + 32]).argmax(axis=1) == truth[at : at + 32]).sum())
        assert right["digits"] == right["digits_gcu"], right
        assert "32" in refusal(module, client, images[:33])
        assert "8,8" in refusal(module, client, images[:2, :, :7]).replace(" ", "")
        client.close()
    expected = ask(http, http.InferenceServerClient(sys.argv[2]), "digits", images[:32])

    def row(place):
        client = grpc.InferenceServerClient(sys.argv[1])
        scores = ask(grpc, client, "digits_gcu", images[place : place + 1])
        client.close()
        return scores

    with ThreadPoolExecutor(8) as pool:  # requests that meet in batches
        np.testing.assert_allclose(np.concatenate(list(pool.map(row, range(32)))), expected, atol=TOLERANCE)
    print("ok")


if __name__ == "__main__":
    main()
