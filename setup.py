"""The compiled parts. Everything else is in pyproject.toml.

They are plain shared libraries with a C ABI, loaded by ctypes: neither Python's ABI nor PyTorch's is used.
`optional`: without a C++ compiler the package installs all the same, and `shoal doctor` says so.
"""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Python's own flags ask for debugging symbols; nobody here reads them, and they double the time.
ARGUMENTS = (
    [] if sys.platform == "win32" else ["-std=c++17", "-O3", "-g0", "-fno-math-errno", "-fvisibility=default"]
)
# The kernels pick their instructions at run time, so no flag here names a processor.
KERNEL_ARGUMENTS = (
    [] if sys.platform == "win32" else ["-std=c++20", "-O3", "-g0", "-fno-math-errno", "-ffp-contract=fast"]
)
KERNELS = Path("csrc/kernels")


class BuildSourcesAtOnce(build_ext):
    """Compiles an extension's sources at the same time: the first thing that a new user waits for."""

    def build_extension(self, ext: Extension) -> None:
        compiler: Any = self.compiler
        one_by_one = compiler.compile

        def compile_all(sources: Sequence[str], *args: Any, **kwargs: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                parts = threads.map(lambda source: one_by_one([source], *args, **kwargs), sources)
                return [name for part in parts for name in part]

        compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            compiler.compile = one_by_one


setup(
    cmdclass={"build_ext": BuildSourcesAtOnce},
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
    ],
)
