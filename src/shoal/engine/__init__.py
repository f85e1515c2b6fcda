"""What runs one replica: model execution on PyTorch and torch.distributed."""

import os

# OpenMP reads these when torch loads it. Its threads spin after each of torch's small operators, and take the cores
# from the threads of our own kernels meanwhile: 5 to 10 % of a decode step's time.
for _name, _value in (("OMP_WAIT_POLICY", "PASSIVE"), ("GOMP_SPINCOUNT", "0"), ("KMP_BLOCKTIME", "0")):
    os.environ.setdefault(_name, _value)
