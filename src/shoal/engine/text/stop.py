"""Stop strings over streamed text: nothing of a stop string leaks, nothing before it is lost.

Each stop string is followed by its own Knuth–Morris–Pratt automaton, whose state is the length of the longest
suffix of the text that is a prefix of the string. That many characters are held back; a full match ends the text.
Cost is constant a character, and the result does not depend on how the text was cut.
"""

from collections.abc import Sequence


class _Automaton:
    __slots__ = ("failure", "state", "word")

    def __init__(self, word: str) -> None:
        self.word = word
        self.state = 0
        self.failure = [0] * len(word)
        length = 0
        for i in range(1, len(word)):
            while length and word[i] != word[length]:
                length = self.failure[length - 1]
            length += word[i] == word[length]
            self.failure[i] = length

    def step(self, character: str) -> bool:
        """Take one character; True when the word is complete."""
        while self.state and character != self.word[self.state]:
            self.state = self.failure[self.state - 1]
        self.state += character == self.word[self.state]
        return self.state == len(self.word)


class StopMatcher:
    """Watches one text for the first completed stop string.

    Among several, the one that is *complete* first wins; of those complete at the same character, the longest.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """`stops` are non-empty. `include_stop` leaves the stop string in the text."""
        # Longest first, so that of two ending together the earlier start is found.
        self._automata = [_Automaton(word) for word in sorted(set(stops), key=len, reverse=True) if word]
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str, *, match: bool = True) -> str:
        """What of the text so far may be shown. After a match, and ever after, the rest is swallowed.

        `match` False: this text is exempt (tokens before `min_tokens`), a stop string cannot even begin in it.
        """
        if self.matched is not None:
            return ""
        if not self._automata:
            return text
        if not match:
            shown, self._held = self._held + text, ""
            for automaton in self._automata:
                automaton.state = 0
            return shown
        for position, character in enumerate(text):
            for automaton in self._automata:
                if automaton.step(character):
                    return self._stop(automaton.word, self._held + text[: position + 1])
        pending = self._held + text
        keep = max(automaton.state for automaton in self._automata)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def flush(self) -> str:
        """The held-back text when the sequence ends for another reason."""
        shown, self._held = self._held, ""
        return shown

    def _stop(self, word: str, pending: str) -> str:
        self.matched = word
        self._held = ""
        return pending if self._include_stop else pending[: len(pending) - len(word)]
