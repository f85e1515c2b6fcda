"""What a replica's process runs: `python -m shoal.cli.replica`, told everything by JSON on its standard input.

Not a command for people: the supervisor of a fleet starts it, with a listening socket to inherit.
"""

import logging
import os
import socket
import sys

FAILED, REFUSED = 1, 2


def main() -> int:
    """Serve until told to stop. 2: it can never work as asked; 1: it failed."""
    from shoal.engine.errors import InvalidOption
    from shoal.fleet.adapters.shoal import ReplicaSetup
    from shoal.specs.errors import SpecError

    logging.basicConfig(
        level=os.environ.get("SHOAL_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    import msgspec

    setup = msgspec.json.decode(sys.stdin.buffer.read(), type=ReplicaSetup)
    sock = socket.socket(fileno=setup.listener)
    sock.setblocking(False)
    try:
        _serve(setup, sock)
    except (InvalidOption, SpecError) as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except Exception as error:
        if not type(error).__module__.startswith("shoal.") or os.environ.get("SHOAL_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        unusable = ("SourceError", "WeightsError", "UnsupportedModel", "AdapterError")
        return REFUSED if type(error).__name__ in unusable else FAILED
    return 0


def _serve(setup: "object", sock: socket.socket) -> None:
    from shoal.cli.loops import run_loop
    from shoal.fleet.adapters.shoal import ReplicaSetup
    from shoal.server.lifecycle import ReplicaServer, signals_stop

    assert isinstance(setup, ReplicaSetup)

    async def serve() -> None:
        if setup.tracing:
            from shoal.observe.traces import EngineTraces

            traces = EngineTraces()
            replica = ReplicaServer(
                setup.engine, setup.server, setup.name, observers=[traces.observer], around=traces.around
            )
        else:
            replica = ReplicaServer(setup.engine, setup.server, setup.name)
        with signals_stop(replica):
            await replica.run(sock)

    if setup.tracing:
        from shoal.observe.traces import set_up

        set_up("shoal-engine")
    try:
        run_loop(serve())
    finally:
        if setup.tracing:
            from shoal.observe.traces import shut_down

            shut_down()


if __name__ == "__main__":
    sys.exit(main())
