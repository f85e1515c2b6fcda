"""Sessions of an open loop that wait for the answers of others."""

from shoal.workload.load import Load


class Chain:
    """Which sessions may begin, now that others have ended."""

    def __init__(self, load: Load) -> None:
        self._left: dict[int, int] = {}
        """How many others a session still waits for."""
        self._followers: dict[int, list[int]] = {}
        self._skipped = 0
        for number, session in enumerate(load.sessions):
            if session.after:
                self._left[number] = len(session.after)
            for place in session.after:
                self._followers.setdefault(place, []).append(number)

    def end(self, number: int, ok: bool) -> list[int]:
        """Note that a session ended, with all of its answers or without; return those that nothing holds up now.

        What waits for a session that failed is never sent, nor is what waits for that.
        """
        followers = self._followers.pop(number, [])
        if not ok:
            self._skip(followers)
            return []
        ready = []
        for follower in followers:
            if follower in self._left:
                self._left[follower] -= 1
                if not self._left[follower]:
                    del self._left[follower]
                    ready.append(follower)
        return ready

    def _skip(self, sessions: list[int]) -> None:
        while sessions:
            number = sessions.pop()
            if self._left.pop(number, None) is not None:
                self._skipped += 1
                sessions += self._followers.pop(number, [])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know of sessions that weren't sent."""
        return (f"{self._skipped} sessions were not sent: one that they wait for failed",) if self._skipped else ()
