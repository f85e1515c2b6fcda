"""What runs one replica: model execution on PyTorch and torch.distributed."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# OpenMP's threads spin after each of torch's small operators, and meanwhile take the cores from the threads of our
# own kernels or from a neighbour rank: 5 to 10 % of a decode step's time.
QUIET_OPENMP: Final[Mapping[str, str]] = MappingProxyType(
    {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
)

# Read when torch is loaded, so they have to be set before.
for _name, _value in QUIET_OPENMP.items():
    os.environ.setdefault(_name, _value)
