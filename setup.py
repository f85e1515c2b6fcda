"""The compiled parts. Everything else is in pyproject.toml.

They are plain shared libraries with a C ABI, loaded by ctypes: neither Python's ABI nor PyTorch's is used.
`optional`: without a C++ compiler the package installs all the same, and `shoal doctor` says so.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

ARGUMENTS = [] if sys.platform == "win32" else ["-std=c++17", "-O3", "-fno-math-errno", "-fvisibility=default"]
# The kernels pick their instructions at run time, so no flag here names a processor.
KERNEL_ARGUMENTS = [] if sys.platform == "win32" else ["-std=c++20", "-O3", "-fno-math-errno", "-ffp-contract=fast"]
KERNELS = Path("csrc/kernels")

setup(
    ext_modules=[
        Extension(
            "shoal.engine.ops._kernels",
            sources=sorted(str(path) for path in KERNELS.glob("*.cpp")),
            depends=sorted(str(path) for path in KERNELS.iterdir() if path.suffix in (".h", ".inc")),
            extra_compile_args=KERNEL_ARGUMENTS,
            extra_link_args=[] if sys.platform == "win32" else ["-pthread"],
            language="c++",
            optional=True,
        ),
        Extension(
            "shoal.engine.parallel._collectives",
            sources=["csrc/collectives.cpp"],
            extra_compile_args=ARGUMENTS,
            language="c++",
            optional=True,
        ),
    ]
)
