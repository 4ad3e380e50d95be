"""Stop strings over token borders.

The result does not depend on how the text is cut into pieces: the match that is complete first wins, among those that
complete at the same character the longest. Text that could still become a stop string is held back, so nothing is ever
shown that a later match would cut (vllm #3574, #2577, TGI #1254).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`stop` was found; the piece's text already ends before (or after, if included) it."""

    stop: str


class StopFinder:
    """Of one choice. `held` is what has been fed and not given out yet."""

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._longest = max(map(len, stops), default=0)
        self.held = ""

    def feed(self, text: str, *, may_match: bool = True) -> tuple[str, StopMatch | None]:
        """Add text; return what may be shown now, and the match if there is one.

        With `may_match` False (before min_tokens) no match may end inside `text`, one may begin there.
        """
        if not self._stops:
            return text, None
        known = len(self.held)
        self.held += text
        if may_match and text:
            end, stop = self._first_match(known)
            if stop is not None:
                shown = self.held[: end if self._include else end - len(stop)]
                self.held = ""
                return shown, StopMatch(stop)
        keep = self._possible_prefix()
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown, None

    def flush(self) -> str:
        """The text held back, when no more can come."""
        held, self.held = self.held, ""
        return held

    def _first_match(self, known: int) -> tuple[int, str | None]:
        """(end, stop) of the match that ends first, after the `known` characters that were searched before."""
        best: tuple[int, str | None] = (len(self.held) + 1, None)
        for stop in self._stops:
            at = self.held.find(stop, max(0, known - len(stop) + 1))
            if at < 0:
                continue
            end = at + len(stop)
            if end < best[0] or (end == best[0] and best[1] is not None and len(stop) > len(best[1])):
                best = (end, stop)
        return best

    def _possible_prefix(self) -> int:
        """Length of the longest end of `held` with which a stop string begins."""
        for length in range(min(len(self.held), self._longest - 1), 0, -1):
            tail = self.held[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
