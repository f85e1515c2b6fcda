"""llama.cpp's own server, as xllamacpp embeds it: MODEL PORT. Runs in its own environment."""

import os
import signal
import sys


def main() -> None:
    import xllamacpp

    slots = 64
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
    params.n_parallel = slots
    params.n_ctx = slots * 320
    params.cont_batching = True
    params.cache_prompt = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ["BENCH_THREADS"])
    server = xllamacpp.Server(params)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("listening at", server.listening_address, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
