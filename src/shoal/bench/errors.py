"""Why a benchmark could not be run; a request that fails is a result, not an error."""


class BenchError(Exception):
    """The endpoint can't be measured: the message says why and what to do."""
