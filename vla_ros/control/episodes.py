"""Which episode of a simulation runs, as far as it was heard. A robot has none."""

from __future__ import annotations


class EpisodeCourse:
    """Follows what a simulation says of its episodes. Not thread-safe.

    Topics and services overtake each other, so an end counts only for an episode that was heard
    to run since :meth:`begin`: a late word about the one before ends nothing.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Whatever ran or ended is past: after a reset, or at the start."""
        self._running: int | None = None
        self._ended: int | None = None
        self.over = ""  # how it ended, between two episodes
        self.solved = False  # that end was a success

    def is_echo(self, number: int, step: int) -> bool:
        """Whether "it runs", said of this episode after ``step`` steps, was said before its end."""
        return number == self._ended and step > 0

    def runs(self, number: int) -> None:
        self._running, self._ended, self.over = number, None, ""

    def ends(self, number: int, how: str, solved: bool = False) -> bool:
        """Whether this ends what runs; ``how`` in one line."""
        if number != self._running:
            return False
        self._running, self._ended, self.over, self.solved = None, number, how, solved
        return True
