"""Adlik's server command under its own name, run by Stoker (`adlik_serving --model_base_path=... --grpc_port=8500 --http_port=8501`)."""
