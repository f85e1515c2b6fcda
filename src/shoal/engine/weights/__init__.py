"""Where tensors come from: safetensors and GGUF, streamed tensor by tensor."""
