"""Templates are foreign code: they render what they should, and cannot escape, change, hang or flood."""

from __future__ import annotations

import pytest

from kvik_engine.text.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate, TemplateError
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


BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ 'x' * 10**9 }}",
    "{{ [0] * 10**9 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ 'x' | center(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000d}'.format(1) }}",
    "{% set s = 'xxxxxxxxxxxxxxxx' * 1000 %}{% for m in range(1000) %}{{ s }}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ messages | tojson(indent=10**9) | length }}" * 2 + "{{ 'x' * 99999 }}",
]


@pytest.mark.parametrize("source", BOMBS)
@pytest.mark.timeout(10)
def test_a_template_cannot_flood_or_hang(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_a_broken_or_huge_template_is_refused_when_it_is_loaded() -> None:
    for source in ("{% for %}", "{{ x", "x" * (MAX_TEMPLATE_CHARS + 1), "{% if a %}" * 5000):
        with pytest.raises(TemplateError):
            ChatTemplate(source, {})


def test_messages_are_not_changed_by_rendering() -> None:
    before = [dict(m) for m in MESSAGES]
    render("{% set messages = messages + [1] %}{% for m in messages %}{% endfor %}")
    assert before == MESSAGES
