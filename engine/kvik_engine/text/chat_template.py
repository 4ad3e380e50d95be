"""Rendering a chat with the model's own jinja2 template, in a sandbox with bounds.

The template is data from the model's files: it sees plain lists and dicts, imports nothing, cannot change its input,
and stops with TemplateError when it loops or writes beyond the bounds (CVE-2026-5760, CVE-2025-62426). Clients cannot
send templates. `convert` renders a sample in a child process first, so that a template that hangs never starts.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MAX_TEMPLATE_CHARS = 1 << 18
MAX_ITERATIONS = 100_000
"""Steps of all `range` loops of one rendering together."""
MAX_REPEATED = 100_000
"""Length of a text or list made by repetition."""
MAX_JOINED = 1 << 24
"""Length of a text or list made by adding two."""
MAX_POWER = 1000
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class TemplateError(Exception):
    """The template refused the messages (`raise_exception`), or failed or overran on them. The message is showable."""


class ChatTemplate:
    """A compiled template. `render` may run in any thread."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are bos_token and so on. Raises TemplateError if the template cannot be compiled."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateError(f"the chat template is longer than {MAX_TEMPLATE_CHARS} characters")
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the chat template cannot be compiled: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, max_chars: int, add_generation_prompt: bool = True
    ) -> str:
        """The prompt text of `messages`. TemplateError when the template refuses, fails or writes over `max_chars`."""
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                range=_Budget(MAX_ITERATIONS).range,
                tools=None,
                documents=None,
                **self._special_tokens,
            ):
                size += len(piece)
                if size > max_chars:
                    raise TemplateError(f"the chat template wrote more than {max_chars} characters")
                pieces.append(piece)
        except TemplateError:
            raise
        except Exception as error:  # the template is foreign code: whatever it raises is its refusal
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}"[:500]) from error
        return "".join(pieces)


class _Budget:
    """Counts the steps of all ranges of one rendering, nested ones included."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def range(self, *bounds: int) -> range:
        steps = range(*bounds)
        self._left -= len(steps) + 1
        if self._left < 0:
            raise TemplateError(f"the chat template loops more than {MAX_ITERATIONS} times")
        return steps


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The immutable sandbox, with bounds on what an operator can produce and without what pads text to any width."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
                    _bound(len(sequence) * times, MAX_REPEATED)
        elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            _bound(len(left) + len(right), MAX_JOINED)
        elif operator == "**":
            _bound(max(abs(n) if isinstance(n, int) else 0 for n in (left, right)), MAX_POWER)
        elif operator == "%" and isinstance(left, str):
            raise TemplateError("the chat template formats with %")
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` can pad to any width; jinja2 asks here before it asks whether the attribute is safe."""
        if super().wrap_str_format(value) is not None:
            raise TemplateError("the chat template calls str.format")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in _PADDING)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; when serving, it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment() -> jinja2.Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    for name in ("lipsum", "cycler"):
        environment.globals.pop(name, None)
    for name in ("center", "indent", "format", "wordwrap", "xmlattr", "pprint"):
        environment.filters.pop(name, None)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _bound(size: int, limit: int) -> None:
    if size > limit:
        raise TemplateError(f"the chat template makes a value of {size} items")


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=None if indent is None else min(indent, 8))


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message)[:500])


def _strftime_now(pattern: str) -> str:
    return dt.datetime.now(dt.UTC).strftime(pattern[:100])
