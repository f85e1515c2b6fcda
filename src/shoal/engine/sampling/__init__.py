"""From logits to a token: parameters, penalties, truncation, guided decoding, log-probabilities.

`shoal.engine.sampling.sampler` needs torch and is imported from there; what is handed out here does not.
"""

from shoal.engine.sampling.errors import InvalidParameter
from shoal.engine.sampling.params import GuidedParams, SamplingParams
from shoal.engine.sampling.random import params_of_choice, resolve_seed

__all__ = ["GuidedParams", "InvalidParameter", "SamplingParams", "params_of_choice", "resolve_seed"]
