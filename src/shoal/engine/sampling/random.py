"""The random number of one output token: a pure function of (seed, index in the output).

Counter-based, so nothing is carried from step to step: batch, schedule, preemption and a continuation on another
replica cannot change it. The mixer is SplitMix64's finalizer (Steele, Lea, Flood, "Fast Splittable Pseudorandom
Number Generators", OOPSLA 2014).
"""

import secrets

import msgspec

from shoal.engine.sampling.params import SamplingParams

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits for token `index` of a sequence with this 64-bit seed."""
    # The seed is hashed before the index joins it: else seed s at index i + 1 would repeat seed s + gamma at i.
    state = _mix((seed + _GAMMA) & _MASK)
    return (_mix((state + (index + 1) * _GAMMA) & _MASK) >> 11) * 2.0**-53


def resolve_seed(params: SamplingParams) -> SamplingParams:
    """The same parameters with a seed: the caller's, or a fresh random one. Called once, at the edge."""
    if params.seed is not None:
        return params
    return msgspec.structs.replace(params, seed=secrets.randbits(63))


def params_of_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """The parameters of the i-th of `n` outputs: seed + i (in 64-bit arithmetic), n = 1."""
    seed = params.seed
    if seed is not None:
        seed = (seed + choice + (1 << 63)) % (1 << 64) - (1 << 63)
    return msgspec.structs.replace(params, seed=seed, n=1)
