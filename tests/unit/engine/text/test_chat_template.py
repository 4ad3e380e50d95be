"""Templates are foreign code: they render what they should, and cannot escape, change, hang or flood."""

from __future__ import annotations

import pytest

from kvik_engine.text import template_budget
from kvik_engine.text.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate, TemplateError, TemplateOverrun
from tests.support.byte_tokenizer import TEMPLATE

MESSAGES = [{"role": "user", "content": "Hi"}]


def render(source: str, **options: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, max_chars=10_000, **options)  # type: ignore[arg-type]


def test_messages_and_the_generation_prompt_are_rendered() -> None:
    assert render(TEMPLATE) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(TEMPLATE, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_special_tokens_loop_controls_and_generation_blocks_work() -> None:
    source = (
        "{{ bos_token }}{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ messages | tojson }}"
    )
    assert render(source) == '<s>01Hi[{"role": "user", "content": "Hi"}]'


def test_a_template_can_refuse_the_messages() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ range.__self__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ (messages | attr('__class__')).mro() }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ joiner.__init__.__globals__ }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_reach_python(source: str) -> None:
    """CVE-2026-5760: a GGUF's chat template ran code."""
    try:
        text = render(source)
    except TemplateError:
        return
    assert text == "", "undefined is all that an escape may find"


NESTED = "{% for a in l %}" * 4 + "{% endfor %}" * 4
SHARED = "{% set a = [1] %}{% set b = [1] %}" + "{% set a = [a, a] %}{% set b = [b, b] %}" * 40
SHARED_KEYS = SHARED.replace("[", "(").replace("]", ",)")
USES = """{{ a == b }}
{{ a < b }}
{{ a in [b] }}
{{ a }}
{{ [1, a] }}
{{ a ~ '' }}
{{ a | string | length }}
{{ a | tojson | length }}
{{ [a] | join }}
{{ ','.join([a]) }}
{{ a | upper }}
{{ a | replace('1', '2') }}
{{ [a, b] | sort | length }}
{{ [b] | select('equalto', a) | list | length }}
{{ a is eq b }}
{{ [b].index(a) }}
{{ a.count(b[0]) }}
{{ [none[1], none[1]] | map('default', a) | sort | length }}
{{ [a] | map('string') | list }}
{{ {'x': a} }}
{{ {'x': a}.items() }}
{% set n = namespace(x=a) %}{{ n }}
{{ raise_exception(a) }}
{% for i in [a, b] %}{{ loop.changed(i) }}{% endfor %}""".splitlines()
USES_OF_A_KEY = """{{ {a: 1} | length }}
{{ {}[a] }}
{{ a in {} }}
{{ {}.get(a) }}
{{ [a] | unique | list | length }}
{{ dict([(a, 1)]) | length }}
{{ a is filter }}""".splitlines()
LONG = "{% set s = 'a' * 2000000 %}{% set t = 'a' * 1999999 ~ 'b' %}"
BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% set l = range(150) | list %}" + NESTED,
    "{% set l = messages * 150 %}" + NESTED,
    "{% set l = 'x' * 150 %}" + NESTED,
    "{% set l = {'a': 1, 'b': 2} %}" + "{% for a in l %}" * 19 + "{% endfor %}" * 19,
    "{{ 'x' * 10**9 }}",
    "{{ [0] * 10**9 }}",
    "{{ ('x' * 10**9) | length }}",
    "{{ 10 ** 10 ** 10 }}",
    "{% set n = namespace(i=3) %}{% for i in range(99) %}{% set n.i = n.i * n.i %}{% endfor %}",
    "{{ 'x' | center(10**9) }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000d}'.format(1) | length }}",
    "{{ '{a:>1000000000}'.format_map({'a': 1}) | length }}",
    "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set s = 'a' * 9999 %}{{ s.replace('a', s) | length }}",
    "{% set s = 'a' * 9999 %}{{ (s | replace('a', s)) | length }}",
    "{% set s = 'a' * 9999 %}{{ s.join(s) | length }}",
    "{% set s = 'a' * 9999 %}{{ (s | join(s)) | length }}",
    "{% set s = 'a' * 9999 %}{{ (s | list | join(s)) | length }}",
    "{% set s = 'a' * 9999 %}{{ s.translate({97: s}) | length }}",
    "{{ [1] | batch(10**9, 0) | list | length }}",
    "{{ [1] | slice(10**9) | list | length }}",
    "{% set s = 'xxxxxxxxxxxxxxxx' * 1000 %}{% for m in range(1000) %}{{ s }}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}",
    (
        "{% set n = namespace(s='x') %}{% macro d(s) %}{{ s }}{{ s }}{% endmacro %}"
        "{% for i in range(60) %}{% set n.s = d(n.s) %}{% endfor %}"
    ),
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{% set l = [1] %}{% for x in l recursive %}{% endfor %}",
    "{% set a = [1] * 300 %}{% set b = [a] * 300 %}{% set c = [b] * 300 %}{{ c | string | length }}",
    "{% set a = [[1] * 1000] * 2000 %}{{ a | sum(start=[]) | length }}",
    "{% set s = 'f' * 9999999 %}{{ (s | int(base=16)) // (s[:5000000] | int(base=16)) }}",
    LONG + "{{ [s] * 20000 == [t] * 20000 }}",
    LONG + "{{ s in [t] * 20000 }}",
    LONG + "{{ s.startswith((t,) * 10000) }}",
    LONG + "{{ {'a': s} == {'a': t} }}" * 100,
    LONG + "{% if s == t %}{% endif %}" * 4000,
    LONG + "{% set y = s[1:] %}" * 4000,
    LONG + "{% set y = ([1] * 1000000)[1:] %}" * 100,
    "{{ ('a' * 300000) | trim(('b' * 300000) ~ 'a') }}",
    "{{ ('a' * 300000).strip(('b' * 300000) ~ 'a') }}",
    "{{ ('a ' * 1500000) | title | length }}",
    "{{ ('a' * 300000).rstrip(('b' * 300000) ~ 'a') }}",
    "{{ range(8000) | list | tojson(separators=('x' * 100000, ':')) | length }}",
    "{% set x %}{% for i in range(4000) %}" + "a" * 200000 + "{% endfor %}{% endset %}",
    "{% macro m() %}{% for i in range(4000) %}" + "a" * 200000 + "{% endfor %}{% endmacro %}{% set x = m() %}",
    "{% filter upper %}{% for i in range(4000) %}" + "a" * 200000 + "{% endfor %}{% endfilter %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% set x %}{% call m() %}{% for i in range(4000) %}"
    + "a" * 200000
    + "{% endfor %}{% endcall %}{% endset %}",
]


@pytest.mark.parametrize("source", BOMBS)
@pytest.mark.timeout(60)
def test_a_template_cannot_flood_or_hang(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize("source", [*(SHARED + use for use in USES), *(SHARED_KEYS + use for use in USES_OF_A_KEY)])
@pytest.mark.timeout(60)
def test_shared_lists_are_refused_for_what_they_hold(source: str) -> None:
    """Compared, written out or hashed they would hold the interpreter for hours, and the probes with it."""
    with pytest.raises(TemplateOverrun, match="goes through more than"):
        render(source)


def test_time_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(template_budget, "MAX_STEPS", 10**12)
    with pytest.raises(TemplateError, match=r"0\.05 s"):
        render("{% set l = 'x' * 9999 %}" + NESTED)


USUAL = [
    ("{{ messages == messages }}{{ [1] < [2] }}{{ 'i' in messages[0].content }}{{ (1, 2) }}", "TrueTrueTrue(1, 2)"),
    ("{{ {(1, 2): 'x'}[(1, 2)] }}{{ [3, 1] | sort }}{{ [1, 2] | sum }}{{ 7 // 2 - 1 }}{{ 1 / 2 }}", "x[1, 3]320.5"),
    ("{{ [2, 1] | map('string') | sort | join }}{{ messages | length }}{{ 1 is eq 1 }}{{ [1].index(1) }}", "121True0"),
    ("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}", "1/1True"),
    ("{{ messages | map(attribute='role') | join(', ') }}", "user"),
    ("{{ messages | join('-', attribute='content') }}", "Hi"),
    ("{{ messages[0].content.replace('H', 'h') | upper }}{{ 'a,b'.split(',') }}", "HI['a', 'b']"),
    ("{{ bos_token ~ 1 ~ messages[0]['role'] }}", "<s>1user"),
    ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
    ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}", "role=user;content=Hi;"),
    ("{{ messages[0] | tojson(ensure_ascii=False, indent=2) | length }}", "39"),
    ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
    (
        "{% set n = namespace(i=0) %}{% for m in messages if m.role == 'user' %}{% set n.i = 3 %}{% endfor %}{{ n.i }}",
        "3",
    ),
    ("{{ 7 % 4 }}", "3"),
    ("{% set x | upper %}a{{ bos_token }}{% endset %}{{ x }}", "A<S>"),
    ("{% for m in nothing %}x{% else %}none{% endfor %}", "none"),
    ("{%- if messages[0]['content'] is string %}{{ messages[0]['content'].strip()[:1] }}{% endif %}", "H"),
    ("{% macro say(m) %}[{{ m.content }}]{% endmacro %}{{ say(messages[0]) }}", "[Hi]"),
    (
        "{% for a in [1, 2, 3] %}{% if loop.first %}{% continue %}{% endif %}{{ a }}{{ loop.revindex }}{% endfor %}",
        "2231",
    ),
    ("{{ messages[::-1][0].role }}{{ messages | last | length }}", "user2"),
    ("{{ messages[0].role | title }}", "User"),
    ("{{ ' a ' | trim }}{{ 'xax' | trim('x') }}{{ 'xax'.strip('x') }}{{ 'axx'.rstrip('x') }}{{ 12 | trim }}", "aaaa12"),
]


@pytest.mark.parametrize(("source", "want"), USUAL)
def test_what_real_templates_use_works(source: str, want: str) -> None:
    assert render(source) == want


def test_a_broken_or_huge_template_is_refused_when_it_is_loaded() -> None:
    for source in ("{% for %}", "{{ x", "x" * (MAX_TEMPLATE_CHARS + 1), "{% if a %}" * 5000):
        with pytest.raises(TemplateError):
            ChatTemplate(source, {})


def test_messages_are_not_changed_by_rendering() -> None:
    before = [dict(m) for m in MESSAGES]
    render("{% set messages = messages + [1] %}{% for m in messages %}{% endfor %}")
    assert before == MESSAGES
