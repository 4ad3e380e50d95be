"""The jinja2 environment of chat templates: the immutable sandbox, with bounds on loops, calls, sizes and time.

jinja2's own sandbox keeps a template from Python's insides, but not from looping or growing for ever. Here every loop
step, every call and every text or list that an operator, `join` or `replace` builds is charged to a budget of the
rendering. What cannot be charged before it is built (padding, str.format, batch, slice) is not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.visitor

from kvik_engine.text.template_budget import BUDGET, TemplateError, weighed, written

MAX_INTEGER_BITS = 256
_MISSING_ATTRIBUTES = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode"})
_MISSING_FILTERS = ("center", "indent", "format", "wordwrap", "xmlattr", "pprint", "batch", "slice", "urlize")
_WORDS = 16
"""jinja2's `title` cuts a text into words in Python: what a character then costs."""
_STRIPPING = frozenset({"strip", "lstrip", "rstrip"})
_SIZED = (str, list, tuple, dict)
_SHALLOW_FILTERS = frozenset(
    {
        "length",
        "count",
        "first",
        "last",
        "list",
        "reverse",
        "default",
        "d",
        "items",
        "attr",
        "map",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
    }
)
"""They look at no item's inside; `map` and its like apply other filters and tests, which do their own weighing."""
_SHALLOW_TESTS = frozenset(
    {
        "defined",
        "undefined",
        "none",
        "boolean",
        "true",
        "false",
        "integer",
        "float",
        "number",
        "string",
        "mapping",
        "iterable",
        "sequence",
        "callable",
        "sameas",
    }
)


def bounded_environment() -> jinja2.Environment:
    """A new environment. Templates compiled by it render only where BUDGET is set."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    for name in ("lipsum", "cycler"):
        environment.globals.pop(name, None)
    for name in _MISSING_FILTERS:
        environment.filters.pop(name, None)
    filters: dict[str, Any] = environment.filters
    for name, function in filters.items():
        filters[name] = _metered(function, _through if name in _SHALLOW_FILTERS else written)
    tests: dict[str, Any] = environment.tests
    for name, test in tests.items():
        tests[name] = _metered(test, _through if name in _SHALLOW_TESTS else weighed)
    environment.filters |= {_EACH: _each, _CONCAT: _concat, _BLOCK: _block, _WEIGHED: weighed, _TEXT: written}
    environment.filters |= {
        _CUT: _cut,
        "join": _join_filter,
        "replace": _replace,
        "sum": _sum,
        "title": _title,
        "trim": _trim,
    }
    environment.globals["range"] = _range
    return environment


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        bounded: jinja2.nodes.Template = _Charging().visit(template)
        return bounded

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call of a template comes here, macros too."""
        BUDGET.get().step()
        owner, method = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if not isinstance(obj, jinja2.runtime.Macro):
            args = tuple(weighed(_whole(arg)) for arg in args)
            for value in (*kwargs.values(), owner if isinstance(owner, (list, tuple)) else None):
                weighed(value)
        if isinstance(owner, str):
            BUDGET.get().produce(len(owner))
        if isinstance(owner, str) and method == "join":
            return _join(args[0] if args else (), owner)
        if isinstance(owner, str) and method == "replace" and len(args) >= 2:
            return _replace(owner, *args, **kwargs)
        if isinstance(owner, str) and method in _STRIPPING and args:
            _charge_strip(owner, args[0])
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


_EACH, _CONCAT, _BLOCK, _WEIGHED, _TEXT, _CUT = (
    f"kvik {name}" for name in ("each", "concat", "block", "weighed", "text", "cut")
)
"""Filters that no template can name."""


class _Charging(jinja2.visitor.NodeTransformer):
    """Rewrites a template so that loops, `~`, comparisons, keys and what is written out pass through the budget."""

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

    def visit_Output(self, node: jinja2.nodes.Output) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [
            # Its own text, too: inside a macro or a block it piles up before anything sees how much it is.
            _filtered(child, _WEIGHED if isinstance(child, jinja2.nodes.TemplateData) else _TEXT, child.lineno)
            for child in node.nodes
        ]
        return node

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _WEIGHED, node.lineno)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, _WEIGHED, node.lineno)
        return node

    def visit_Pair(self, node: jinja2.nodes.Pair) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _filtered(node.key, _WEIGHED, node.lineno)
        return node

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, jinja2.nodes.Slice):
            node.node = _filtered(node.node, _CUT, node.lineno)
        elif not isinstance(node.arg, jinja2.nodes.Const):
            node.arg = _filtered(node.arg, _WEIGHED, node.lineno)
        return node


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


def _whole(value: Any) -> Any:
    """An iterator's items as a list, so that they can be weighed."""
    return list(value) if isinstance(value, Iterator) else value


def _through(value: Any) -> Any:
    return value


def _metered(function: Callable[..., Any], charge: Callable[[Any], Any]) -> Callable[..., Any]:
    """A filter or test whose arguments are charged first: texts by their length, all else as `charge` does."""

    def charged(value: Any) -> Any:
        if isinstance(value, str):
            BUDGET.get().produce(len(value))
            return value
        return value if charge is _through else charge(_whole(value))

    @functools.wraps(function)  # takes over which of context and environment it wants
    def metered(*args: Any, **kwargs: Any) -> Any:
        return function(*map(charged, args), **{name: charged(value) for name, value in kwargs.items()})

    return metered


@jinja2.pass_environment
def _sum(environment: jinja2.Environment, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """Of numbers: lists would be copied as often as there are some."""
    if not isinstance(start, (int, float)):
        raise TemplateError("the chat template sums up something else than numbers")
    return jinja2.filters.sync_do_sum(environment, iterable, attribute, start)


def _trim(value: Any, chars: str | None = None) -> str:
    text = str(written(value))
    _charge_strip(text, chars)
    return text.strip(chars)


def _title(value: Any) -> str:
    text = str(written(value))
    BUDGET.get().produce(_WORDS * len(text))
    return jinja2.filters.do_title(text)


def _charge_strip(text: str, chars: Any) -> None:
    """Each character that goes may be looked for among all of `chars`."""
    BUDGET.get().produce(len(text) * max(1, len(chars) if isinstance(chars, str) else 0))


def _cut(value: Any) -> Any:
    """`value`, charged for a slice that may copy all of it."""
    if isinstance(value, _SIZED):
        BUDGET.get().produce(len(value))
    return value


def _each(items: Iterable[Any]) -> _Each:
    return _Each(items)


def _block(text: Any) -> Any:
    """What a block assigns is charged when it is there: it is at most what its parts were."""
    BUDGET.get().produce(len(text))
    return text


def _concat(parts: list[Any]) -> str:
    texts = [str(written(part)) for part in parts]
    BUDGET.get().produce(sum(map(len, texts)))
    return "".join(texts)


@jinja2.pass_environment
def _join_filter(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return _join(value, d)


def _join(value: Iterable[Any], separator: str) -> str:
    texts = [str(written(part)) for part in value]
    BUDGET.get().produce(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(written(value))
    BUDGET.get().produce(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _range(*bounds: int) -> range:
    steps = range(*bounds)
    BUDGET.get().step(len(steps))
    return steps
