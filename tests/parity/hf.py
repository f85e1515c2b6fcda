"""Transformers' own reading of a GGUF file."""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch


def from_gguf(path: Path) -> Any:
    """The fp32 model that Transformers makes of a GGUF file, eager attention."""
    pytest.importorskip("accelerate", reason="Transformers reads GGUF through accelerate")
    from transformers import AutoModelForCausalLM

    mapped = np.memmap

    def plain(*args: Any, **kwargs: Any) -> Any:
        return mapped(*args, **kwargs).view(np.ndarray)

    # The gguf library slices its map once a token of the vocabulary: a memmap takes minutes for it, a view none.
    with mock.patch("numpy.memmap", plain):
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
        )
    return model.eval()
