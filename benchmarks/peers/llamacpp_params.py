"""How llama.cpp is set up here, whether it is called or served: MODEL is the first argument."""

import os
import sys
from typing import Any

SLOTS = 64


def parameters() -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * 320
    params.cont_batching = True
    params.cache_prompt = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ["BENCH_THREADS"])
    return params
