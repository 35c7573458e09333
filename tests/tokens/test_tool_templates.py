"""Templates that tell a model of tools: the ids of transformers' apply_chat_template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmgpu import Tokenizer

# ruff: noqa: E501 (templates have long lines)

# Each has what the templates of a family of models use.
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You are helpful.' }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA = """{%- set ns = namespace(first=true) %}{% if tools is not none %}{{ "Environment: ipython\\n" }}{% for t in tools %}{{ t | tojson(indent=4) }}{{ "\\n\\n" }}{% endfor %}{% endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|im_start|>' + message['role'] + '\\n\\n'+ message['content'] | trim + '<|im_end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|im_start|>assistant\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}<|im_end|>" }}
    {%- else %}{{- "<|im_start|>ipython\\n\\n" }}{%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- "<|im_end|>" }}
    {%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}"""

HERMES = """{%- macro kinds(p) -%}{% for k, v in p.items() | list %}{{ k }}: {{ v.type | upper }}{% if not loop.last %}, {% endif %}{% endfor %}{%- endmacro -%}
<|im_start|>system
{% for tool in tools or [] %}{{ tool.function.name }}({{ kinds(tool.function.parameters.properties) }}) {{ tool.function.description | default('') }}
{% endfor %}<|im_end|>
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or (message.tool_calls | tojson(indent=2)) }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

GEMMA = """{{ bos_token | default('') }}{% if tools %}{% for t in tools | sort(attribute='function.name') %}{{ loop.index0 }}={{ t['function']['name'] }};{{ t.function.parameters.required | join(', ') }}
{% endfor %}{% endif %}{% for m in messages %}{% if (m['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = m['role'] %}{% endif %}{{ '<|im_start|>' + role + '\n' }}{{ (m['content'] or '') | trim }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.arguments.items() | list }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"""

FIRST = """{%- set ns = namespace(tools='', calls=0) -%}
{%- for tool in tools or [] -%}
    {%- set ns.tools = ns.tools ~ tool['function'] | tojson(separators=(',', ':')) ~ ';' -%}
{%- endfor -%}
{{- '[TOOLS]' + ns.tools + '[/TOOLS]' -}}
{%- for m in messages -%}
    {%- if m['role'] == 'tool' -%}{{- '<|im_start|>result ' ~ ns.calls ~ m.content ~ '<|im_end|>' -}}
    {%- elif m.tool_calls is defined -%}
        {%- for call in m.tool_calls -%}{%- set ns.calls = ns.calls + 1 -%}
            {{- '<|im_start|>assistant call ' ~ call.function.name ~ call.function.arguments | tojson ~ '<|im_end|>' -}}
        {%- endfor -%}
    {%- else -%}{{- '<|im_start|>' ~ m.role ~ ' ' ~ m.content ~ '<|im_end|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant ' -}}{%- endif -%}"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Wetter für <Städte> & "Orte"',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Köln", "東京"]},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]
CALL = {"name": "weather", "arguments": {"city": "Köln", "days": 2}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": " How warm? "},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": CALL}],
    },
    {"role": "tool", "content": "12.5"},
    {"role": "assistant", "content": "12 °C"},
    {"role": "user", "content": "thanks"},
]


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("tools", [TOOLS, None])
@pytest.mark.parametrize("source", [QWEN, LLAMA, HERMES, GEMMA, FIRST])
def test_ids_are_those_of_transformers(
    tmp_path: Path, source: str, tools: list[Any] | None, prompt: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer.train_from_iterator(
        ["function name city 'type'"] * 9,
        vocab_size=300,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        device="cpu",
    )
    ours.export("huggingface", f"{tmp_path}/")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path)).apply_chat_template(
        MESSAGES,
        tools=tools,
        chat_template=source,
        add_generation_prompt=prompt,
        return_dict=False,
    )
    ids, _ = ours.apply_chat_template(
        MESSAGES, tools=tools, chat_template=source, add_generation_prompt=prompt
    )
    assert ids.tolist() == theirs
