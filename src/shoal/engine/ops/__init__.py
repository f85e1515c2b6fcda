"""The operations a model is made of, each with a plain-torch reference and a place for kernels."""
