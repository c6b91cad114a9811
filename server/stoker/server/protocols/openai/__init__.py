"""OpenAI's API: embeddings, completions and chat completions of models that declare them."""
