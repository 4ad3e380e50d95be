"""One choice on its way from tokens to shown text: detokenising, stop strings, counting. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvik_engine.api.sampling_fields import StopRules
from kvik_engine.ipc.messages import FinishReason, Output, OutputToken
from kvik_engine.text.detokenizer import Detokenizer
from kvik_engine.text.stop import StopFinder
from kvik_engine.text.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token for logprobs, and how many characters of the choice stand before it."""

    token: OutputToken
    offset: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What became showable of one choice."""

    index: int
    """Among all choices of the request: prompt x n + choice."""
    text: str
    tokens: tuple[ShownToken, ...]
    """The tokens behind it, for logprobs; a token appears no later than its text."""
    finish: FinishReason | None


class ChoiceText:
    """State of one choice. Feed it every Output in order, until a delta has `finish`."""

    def __init__(self, index: int, table: TokenBytes, rules: StopRules) -> None:
        self.index = index
        self.completion_tokens = 0
        """Billed tokens: those up to and including the one that completed a stop string, or the stop token."""
        self.logprob = 0.0
        """Of all billed tokens together; means something only where the request asked for logprobs."""
        self._detokenizer = Detokenizer(table)
        self._stop = StopFinder(rules.strings, include=rules.include)
        self._min_tokens = rules.min_tokens
        self._fed = 0
        self._shown = 0
        self._waiting: deque[tuple[int, int, OutputToken]] = deque()
        """Tokens whose text is held back: where their text starts and ends, in characters, and the token."""

    def take(self, output: Output) -> tuple[Delta, bool]:
        """(what can be shown now, whether a stop string was found and the core must be told)."""
        pieces: list[str] = []
        for token in output.tokens:
            self.completion_tokens += 1
            self.logprob += token.logprob or 0.0
            piece = self._detokenizer.feed(token.token)
            start, self._fed = self._fed, self._fed + len(piece)
            self._waiting.append((start, self._fed, token))
            shown, match = self._stop.feed(piece, may_match=self.completion_tokens > self._min_tokens)
            pieces.append(shown)
            if match is not None:
                return self._delta(pieces, FinishReason.STOP, stopped=True), True
        self.completion_tokens += output.stop_tokens
        self.logprob += output.stop_logprob or 0.0
        if output.finish is not None:
            shown, _ = self._stop.feed(self._detokenizer.flush(), may_match=False)
            pieces += [shown, self._stop.flush()]
        return self._delta(pieces, output.finish, stopped=False), False

    def _delta(self, pieces: list[str], finish: FinishReason | None, *, stopped: bool) -> Delta:
        text = "".join(pieces)
        self._shown += len(text)
        tokens: list[ShownToken] = []
        while self._waiting:
            start, end, token = self._waiting[0]
            if end > self._shown and (finish is None or (stopped and start >= self._shown)):
                break
            self._waiting.popleft()
            tokens.append(ShownToken(token, start))
        return Delta(self.index, text, tuple(tokens), finish)
