"""Fewer bits for a model's matrices: said after it is built and before it is loaded, so that every matrix is
rounded as it is read and never in memory twice.

Linear layers and experts get the scheme; the embedding and the head, where a row or an output stands for a token,
eight bits. Norms, biases, routers and the up-projection that latent attention absorbs stay as they are.
"""

from shoal.engine.layers.experts import Experts
from shoal.engine.layers.linear import Linear, RowLinear
from shoal.engine.models.decoder import CausalLM
from shoal.engine.ops.quantized import Scheme


def quantize_model(model: CausalLM, scheme: Scheme) -> None:
    """Have `model`, which is not loaded yet, hold its matrices in fewer bits."""
    for module in model.modules():
        if isinstance(module, (Linear, RowLinear, Experts)):
            module.quantize(scheme)
    if model.embedding is not None:
        model.embedding.quantize()
    if model.head is not None:
        model.head.quantize(model.shared_weight())
