"""llama.cpp's own server, as xllamacpp embeds it: MODEL PORT. Runs in its own environment."""

import os
import signal
import sys

from llamacpp_params import parameters


def main() -> None:
    import xllamacpp

    params = parameters()
    params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
    server = xllamacpp.Server(params)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("listening at", server.listening_address, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
