"""The compiled parts. Everything else is in pyproject.toml.

They are plain shared libraries with a C ABI, loaded by ctypes: neither Python's ABI nor PyTorch's is used.
`optional`: without a C++ compiler the package installs all the same, and `shoal.engine.parallel.shm.backend()`
says so.
"""

import sys

from setuptools import Extension, setup

ARGUMENTS = [] if sys.platform == "win32" else ["-std=c++17", "-O3", "-fno-math-errno", "-fvisibility=default"]

setup(
    ext_modules=[
        Extension(
            "shoal.engine.parallel._collectives",
            sources=["csrc/collectives.cpp"],
            extra_compile_args=ARGUMENTS,
            language="c++",
            optional=True,
        )
    ]
)
