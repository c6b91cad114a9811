"""TensorFlow Serving's protocol: PredictionService and ModelService over gRPC, `/v1/models/...` over REST."""
