"""What runs one replica: model execution on PyTorch and torch.distributed."""
