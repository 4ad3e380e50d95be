"""What one rendering of a chat template may still use, and what going through a value costs of it.

Lists in lists may share their parts: twenty-eight lines make one whose comparison, hash or text visits 2**28 items,
in C, with the interpreter lock held, so that even probes wait. Therefore whatever goes through all of a value weighs it
first: every item as often as it is reached, every text by its length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from contextvars import ContextVar
from typing import Any

import jinja2

from kvik_engine.errors import KvikError

MAX_STEPS = 200_000
"""Loop steps and calls of one rendering."""
MAX_PRODUCED = 1 << 25
"""Characters and list items that one rendering builds, cuts or compares."""
MAX_VISITED = 1 << 19
"""Items of containers that one rendering compares, hashes or writes out."""
MAX_SECONDS = 5.0
_COLLECTIONS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
_CONTAINERS = (dict, jinja2.utils.Namespace, *_COLLECTIONS)
_NUMBER_CHARS = 80
_ESCAPED_CHARS = 12
"""Of one character in JSON: a surrogate pair."""


class TemplateError(KvikError):
    """The template refused the messages (`raise_exception`), or failed or overran on them. The message is showable."""


class TemplateOverrun(TemplateError):
    """The template used up its budget."""


class Budget:
    """What one rendering may still use."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = MAX_STEPS
        self._produced = MAX_PRODUCED
        self._visited = MAX_VISITED
        self._end = clock() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """TemplateOverrun when the steps or the time are used up."""
        self._steps -= count
        if self._steps < 0:
            raise TemplateOverrun(f"the chat template takes more than {MAX_STEPS} steps")
        self.look_at_the_clock()

    def look_at_the_clock(self) -> None:
        """TemplateOverrun when the time is used up."""
        if self._clock() > self._end:
            raise TemplateOverrun(f"the chat template takes more than {MAX_SECONDS:g} s")

    def visit(self, count: int) -> None:
        """TemplateOverrun when `count` items of a container are too many to go through."""
        self._visited -= count
        if self._visited < 0:
            raise TemplateOverrun(f"the chat template goes through more than {MAX_VISITED} items")

    def produce(self, size: int) -> None:
        """TemplateOverrun when a value of `size` characters or items is too much. Call it before building the value."""
        self._produced -= size
        if self._produced < 0:
            raise TemplateOverrun(f"the chat template builds or goes over more than {MAX_PRODUCED} characters")
        self.look_at_the_clock()


BUDGET: ContextVar[Budget] = ContextVar("budget")
"""Of the rendering that runs in this context."""


def weighed(value: Any) -> Any:
    """`value`, its items and texts charged for being compared or hashed."""
    if isinstance(value, (str, bytes)):
        BUDGET.get().produce(len(value))
        return value
    return weigh(value, text=False) if isinstance(value, _CONTAINERS) else value


def written(value: Any) -> Any:
    """`value`, its items charged for being written out. The length of a text itself is bounded where it goes."""
    return weigh(value, text=True) if isinstance(value, _CONTAINERS) else value


def weigh(value: Any, *, text: bool, indent: int = 0) -> Any:
    """Charge every item in `value`, as often as it is reached, and texts by their length.

    With `text` all items are charged the characters that stand for them, which are more than their own.
    """
    budget = BUDGET.get()
    budget.look_at_the_clock()
    level, pending = 0, [value]
    while pending:
        items: list[Any] = []
        for item in pending:
            if text:
                budget.produce(indent * level + _characters(item))
            elif isinstance(item, (str, bytes)):
                budget.produce(len(item))
            inner: Any = getattr(item, "_Namespace__attrs", None) if isinstance(item, jinja2.utils.Namespace) else item
            if isinstance(inner, dict):
                budget.visit(2 * len(inner))
                items.extend(inner)
                items.extend(inner.values())
            elif isinstance(inner, _COLLECTIONS):
                budget.visit(len(inner))
                items.extend(inner)
        budget.look_at_the_clock()
        level, pending = level + 1, items
    return value


def _characters(item: Any) -> int:
    """At most so many stand for it in a container's text, as Python or as JSON."""
    if isinstance(item, str):
        return len(item) + 4 if item.isascii() and item.isprintable() else _ESCAPED_CHARS * len(item) + 4
    return _NUMBER_CHARS if isinstance(item, (int, float)) else 4
