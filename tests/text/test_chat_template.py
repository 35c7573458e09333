"""Chat templates of others: what they render, and the limits of those that mean harm."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from llmgpu.errors import InputError
from llmgpu.text.chat import PLAIN_TOKENS, Parts, PlainRenderer, TemplateRenderer, plain_template

pytest.importorskip("jinja2")
MESSAGES = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d\u00e9\U0001f600"},
]


@contextlib.contextmanager
def rendering(source: str, **tokens: str) -> Iterator[TemplateRenderer]:
    with TemplateRenderer(source, tokens) as renderer:
        yield renderer


def render(source: str, messages: Any = MESSAGES, tools: Any = None, **tokens: str) -> Parts:
    with rendering(source, **tokens) as renderer:
        return renderer.render(messages, tools, "c.jsonl, line 1")


def replies(parts: Parts) -> list[str]:
    return [text for text, is_reply in parts if is_reply]


def test_generation_blocks() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "  {% if m.role == 'assistant' %}<{% generation %}{{ m.content }}|{% endgeneration %}>\n"
        "  {%- else %}{{ m['content'] }}{% endif %}\n"
        "{% endfor %}"
    )
    parts = render(source, bos_token="<s>")
    assert "".join(text for text, _ in parts) == "<s>a<b|>c<d\u00e9\U0001f600|>"
    assert replies(parts) == ["b|", "d\u00e9\U0001f600|"]


def test_the_plain_template_is_that_of_the_plain_renderer() -> None:
    source = plain_template(PLAIN_TOKENS)
    assert source is not None and plain_template(PLAIN_TOKENS[:1]) is None
    for prompt in (False, True):
        expected = PlainRenderer().render(MESSAGES, None, "", prompt=prompt)
        with rendering(source) as renderer:
            found = renderer.render(MESSAGES, None, "", prompt=prompt)
        assert "".join(text for text, _ in found) == "".join(text for text, _ in expected)


def test_without_blocks_the_reply_is_what_its_message_adds() -> None:
    source = (
        "{% for m in messages %}[{{ m.role[0] }}] {{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[a]{% endif %}"
    )
    parts = render(source)
    assert "".join(text for text, _ in parts) == "[u] a;[a] b;[u] c;[a] d\u00e9\U0001f600;"
    assert replies(parts) == [" b;", " d\u00e9\U0001f600;"]


def test_what_a_template_sees() -> None:
    parts = render(
        "{% set n = namespace(x=1) %}{% for m in messages %}{% if loop.index > 1 %}{% break %}"
        "{% endif %}{{ m | tojson }}{% endfor %}{{ tools | tojson(indent=1) }}{{ documents }}"
        "{{ strftime_now is defined }}{% generation %}{% endgeneration %}",
        [{"role": "user", "content": "<\u00e9>", "name": None, "reasoning": "r"}],
        [{"a": 1}],
    )
    shown = '{"thinking": "r", "role": "user", "content": "<\u00e9>", "reasoning": "r", '
    assert parts == [
        (shown + '"reasoning_content": "r"}[\n {\n  "a": 1\n }\n]NoneFalse', False),
    ]


def test_options_of_tojson_by_position() -> None:
    source = "{{ tools | tojson(true, none, [',', ':'], true) }}{{ tools | tojson(indent=1) }}"
    messages = [{"role": "user", "content": "a"}]
    assert render(source, messages, [{"b": 1, "a": "\u00e9"}]) == [
        ('[{"a":"\\u00e9","b":1}][\n {\n  "b": 1,\n  "a": "\u00e9"\n }\n]', False)
    ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "the chat template fails: Expected an expression"),
        ("{{ raise_exception('no\\nsystem') }}", "line 1: the chat template fails: no system"),
        ("{{ messages.x.y }}", "line 1: the chat template fails: 'list object' has no attribute"),
        ("{{ ''.__class__.__mro__ }}", "line 1: the chat template fails: access to attribute"),
        (
            "{{ messages.append(1) }}",
            "fails: access to attribute 'append' of 'list' object is unsafe",
        ),
        ("{% include '/etc/passwd' %}", "line 1: the chat template fails: no loader"),
        ("{{ messages | length }}", "it renders message 2 differently when others follow"),
        ("{{ 1 // 0 }}", "line 1: the chat template fails: "),
        (
            "{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}y{{ f() }}z{{ f() }}",
            None,
        ),
        ("{% set x %}a{% generation %}b{% endgeneration %}{% endset %}", "is not where it was"),
        (
            "{% generation %}{% generation %}b{% endgeneration %}{% endgeneration %}",
            "nested generation blocks",
        ),
    ],
)
def test_templates_that_fail_name_the_line(source: str, message: str | None) -> None:
    if message is None:
        assert replies(render(source)) == ["x", "x"]
        return
    with pytest.raises(InputError) as raised:
        render(source)
    assert message in str(raised.value)


@pytest.mark.skipif(sys.platform == "win32", reason="processes have no limits there")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ 'x' * 4000000000 }}", "more than 1073741824 bytes"),
        ("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "more than 67108864 char"),
        ("{{ 'a' | center(3000000000) }}", "more than 1073741824 bytes"),
        pytest.param(
            "{% set n = namespace(x='aa') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}"
            "{% endfor %}",
            "more than 1073741824 bytes",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_templates_that_make_gigabytes(source: str, message: str) -> None:
    with rendering("{% generation %}{% endgeneration %}" + source) as renderer:
        with pytest.raises(InputError, match=message):
            renderer.render(MESSAGES, None, "line 1")
        with pytest.raises(InputError, match=message):  # the process still answers
            renderer.render(MESSAGES, None, "line 2")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes have no limits there")
@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        # 3 ** 999999999: of 4, a power of two, Python works the power out in 9 seconds.
        "{% set n = messages | length - 1 %}{{ n ** 999999999 }}",
    ],
)
def test_templates_that_never_end(source: str) -> None:
    with (
        pytest.raises(InputError, match=r"line 1: the chat template takes too long"),
        rendering(source) as renderer,
    ):
        renderer.render(MESSAGES, None, "line 1")


def test_a_token_at_the_very_end_is_no_reply() -> None:
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
    )
    parts = render(source, eos_token="<|endoftext|>")
    assert replies(parts) == ["b<|end|>", "d\u00e9\U0001f600<|end|><|endoftext|>"]


def test_the_date_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{{ strftime_now('%Y-%m-%d') }}{% generation %}{% endgeneration %}"
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with pytest.raises(InputError, match="'strftime_now' is undefined: set SOURCE_DATE_EPOCH"):
        render(source)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert render(source) == [("2023-11-14", False)]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(InputError, match="SOURCE_DATE_EPOCH is 'today', not a number of seconds"):
        render(source)


def test_what_is_nested_too_deep() -> None:
    nested: Any = []
    for _ in range(400_000):  # Python 3.12 and later go deeper
        nested = [nested]
    with pytest.raises(InputError, match=r"line 1: the chat template .* nested this deep"):
        render("", [{"role": "user", "content": nested}])


def test_lone_surrogates_pass() -> None:
    parts = render("{{ messages[0].content }}", [{"role": "user", "content": "\ud800\udcff"}])
    assert parts == [("\ud800\udcff", False)]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"needs the package jinja2: pip install 'llmgpu\[chat\]'"):
        TemplateRenderer("", {})
