"""The jinja2 environment of chat templates: the immutable sandbox, with bounds on loops, calls, sizes and time.

jinja2's own sandbox keeps a template from Python's insides, but not from looping or growing for ever. Here every loop
step, every call and every text or list that an operator, `join` or `replace` builds is charged to a budget of the
rendering. What cannot be charged before it is built (padding, str.format, batch, slice) is not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.visitor

from kvik_engine.errors import KvikError

MAX_STEPS = 200_000
"""Loop steps and calls of one rendering."""
MAX_PRODUCED = 1 << 25
"""Characters and list items that one rendering builds."""
MAX_SECONDS = 5.0
MAX_INTEGER_BITS = 256
_MISSING_ATTRIBUTES = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode"})
_MISSING_FILTERS = ("center", "indent", "format", "wordwrap", "xmlattr", "pprint", "batch", "slice", "urlize")
_SIZED = (str, list, tuple, dict)


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
        self._end = clock() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """TemplateOverrun when the steps or the time are used up."""
        self._steps -= count
        if self._steps < 0:
            raise TemplateOverrun(f"the chat template takes more than {MAX_STEPS} steps")
        if self._clock() > self._end:
            raise TemplateOverrun(f"the chat template takes more than {MAX_SECONDS:g} s")

    def produce(self, size: int) -> None:
        """TemplateOverrun when a value of `size` characters or items is too much. Call it before building the value."""
        self._produced -= size
        if self._produced < 0:
            raise TemplateOverrun(f"the chat template builds more than {MAX_PRODUCED} characters")


BUDGET: ContextVar[Budget] = ContextVar("budget")
"""Of the rendering that runs in this context."""


def bounded_environment() -> jinja2.Environment:
    """A new environment. Templates compiled by it render only where BUDGET is set."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    for name in ("lipsum", "cycler"):
        environment.globals.pop(name, None)
    for name in _MISSING_FILTERS:
        environment.filters.pop(name, None)
    environment.filters |= {_EACH: _each, _CONCAT: _concat, _BLOCK: _block, "join": _join_filter, "replace": _replace}
    environment.globals["range"] = _range
    return environment


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        bounded: jinja2.nodes.Template = _Charging().visit(template)
        return bounded

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call of a template comes here, macros too."""
        BUDGET.get().step()
        owner, method = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and method == "join":
            return _join(args[0] if args else (), owner)
        if isinstance(owner, str) and method == "replace" and len(args) >= 2:
            return _replace(owner, *args, **kwargs)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str):
            BUDGET.get().produce(len(result))
        return result

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and not isinstance(left, (int, float)):
            raise TemplateError("the chat template formats with %")
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (max(right, 1) if operator == "**" else 1) + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise TemplateError("the chat template computes with huge numbers")
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, _SIZED) and isinstance(times, int):
                    BUDGET.get().produce(len(value) * max(times, 0))
        elif isinstance(left, _SIZED) and isinstance(right, _SIZED):
            BUDGET.get().produce(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` can pad to any width; jinja2 asks here before it asks whether the attribute is safe."""
        if super().wrap_str_format(value) is not None:
            raise TemplateError("the chat template calls str.format")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not (
            isinstance(obj, str) and attr in _MISSING_ATTRIBUTES
        )


_EACH, _CONCAT, _BLOCK = "kvik each", "kvik concat", "kvik block"
"""Filters that no template can name."""


class _Charging(jinja2.visitor.NodeTransformer):
    """Rewrites a template so that its loops and its `~` pass through the budget."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802  (jinja2 names it so)
        if node.recursive:
            raise TemplateError("the chat template loops recursively")
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _EACH, node.lineno)
        return node

    def visit_AssignBlock(self, node: jinja2.nodes.AssignBlock) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, _BLOCK, node.lineno)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(jinja2.nodes.List(node.nodes, lineno=node.lineno), _CONCAT, node.lineno)


def _filtered(node: Any, name: str, line: int) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=line)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; when serving, it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Each:
    """Items of a loop, charged one by one. Has a length where the items have one: `loop.last` asks for it."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items if isinstance(items, _SIZED) else list(items)

    def __iter__(self) -> Iterator[Any]:
        budget = BUDGET.get()
        for item in self._items:
            budget.step()
            yield item

    def __len__(self) -> int:
        return len(self._items)


def _each(items: Iterable[Any]) -> _Each:
    return _Each(items)


def _block(text: Any) -> Any:
    """What a block assigns is charged when it is there: it is at most what its parts were."""
    BUDGET.get().produce(len(text))
    return text


def _concat(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    BUDGET.get().produce(sum(map(len, texts)))
    return "".join(texts)


@jinja2.pass_environment
def _join_filter(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return _join(value, d)


def _join(value: Iterable[Any], separator: str) -> str:
    texts = [str(part) for part in value]
    BUDGET.get().produce(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(value)
    BUDGET.get().produce(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _range(*bounds: int) -> range:
    steps = range(*bounds)
    BUDGET.get().step(len(steps))
    return steps
