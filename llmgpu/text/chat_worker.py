"""Renders a chat template: a program in a process of its own, with limits.

The program reads lines of JSON and answers each line with a line. The first line is
``{"source", "tokens", "time"}``: the template, the special tokens that it names, and the current
time that the template sees, in seconds (or null). The answer is ``{}``. Each further line is
``{"messages": [...], "tools": ...}``, answered by ``{"text": ..., "spans": [[begin, end], ...]}``.
The spans are the assistant's text, in characters. The answer to a failure is ``{"error": ...}``.

- In Jinja's sandbox, a template sees the functions and filters that transformers provides, except
  the date of today, because ids would then depend on the date.
- ``{% generation %}`` blocks of a template contain the assistant's text. A template without such
  blocks is rendered twice for each message of the assistant: with the messages before it and the
  header of a reply, and then with the message as well. The difference is the assistant's text.
- A template that needs too much processor time ends the process. Too much memory ends the process
  or raises an error.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

SECONDS = 10.0  # limit on the processor time for each line
MEMORY_BYTES = 1 << 30  # limit on the address space of the process
RENDERED_CHARACTERS = 1 << 26
LEAST_JINJA = (3, 1, 6)  # templates can leave the sandbox of earlier versions

# fields with the reasoning of a message; the first that is present is used
_REASONING = ("reasoning_content", "thinking", "reasoning")
_SHOWN = 300  # most characters of an error message in an answer


class GenerationBlocks(jinja2.ext.Extension):
    """Jinja's tag ``{% generation %}...{% endgeneration %}``, which marks the assistant's text.

    found: (begin, text) of each block of the last rendering. length: set to a function that returns
    the number of characters rendered before the block.
    """

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.is_used = False
        self.found: list[tuple[int, str]] = []
        self.length: Callable[[], int] = lambda: 0

    def parse(self, parser: Any) -> Any:
        """Parse a block, and return a node of Jinja's syntax tree that calls `_note`."""
        self.is_used = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text = caller()
        self.found.append((self.length(), text))
        return text


class Template:
    """A compiled template."""

    def __init__(self, source: str, tokens: dict[str, str], time: int | None) -> None:
        """Compile a template; an error in `source` raises an exception of Jinja."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlocks, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        if time is not None:
            now = datetime.fromtimestamp(time, UTC)
            environment.globals["strftime_now"] = now.strftime
        self._tokens = tokens
        self._blocks: Any = environment.extensions[GenerationBlocks.identifier]
        self._template = environment.from_string(source)

    def render(
        self, messages: list[dict[str, Any]], tools: Any, prompt: bool = False
    ) -> dict[str, Any]:
        """Return the answer to a request: the conversation as text, and the assistant's spans.

        prompt: append the header of the assistant's next reply.
        """
        cleaned = [_clean(message) for message in messages]
        answer = self._answer(cleaned, tools)
        if prompt:
            whole = self._render(cleaned, tools, prompt=True)
            if not whole.startswith(answer["text"]):
                _raise("it renders the conversation differently when a reply is asked for")
            answer["text"] = whole
        return answer

    def _answer(self, cleaned: list[dict[str, Any]], tools: Any) -> dict[str, Any]:
        text = self._render(cleaned, tools)
        if not self._blocks.is_used:
            return {"text": text, "spans": self._spans_by_prefixes(text, cleaned, tools)}
        spans = [(begin, begin + len(block)) for begin, block in self._blocks.found]
        for (begin, block), (_, end) in zip(self._blocks.found, spans, strict=True):
            if text[begin:end] != block:
                _raise("a generation block is not where it was rendered: take it out of its macro")
        return {"text": text, "spans": spans}

    def _render(self, messages: list[dict[str, Any]], tools: Any, prompt: bool = False) -> str:
        parts: list[str] = []
        length = 0
        self._blocks.found, self._blocks.length = [], lambda: length
        for part in self._template.generate(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=prompt,
            **self._tokens,
        ):
            length += len(part)
            if length > RENDERED_CHARACTERS:
                _raise(f"it renders a conversation to more than {RENDERED_CHARACTERS} characters")
            parts.append(part)
        return "".join(parts)

    def _spans_by_prefixes(
        self, text: str, messages: list[dict[str, Any]], tools: Any
    ) -> list[tuple[int, int]]:
        spans = []
        for index, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before = self._render(messages[:index], tools, prompt=True)
            after = self._render(messages[: index + 1], tools)
            if not text.startswith(after):  # some templates add a final token
                after = after.removesuffix(self._tokens.get("eos_token", ""))
            if not (text.startswith(after) and after.startswith(before)):
                _raise(
                    f"it renders message {index + 1} differently when others follow, so what the "
                    "assistant wrote can't be found: put {% generation %} blocks around it"
                )
            spans.append((len(before), len(after)))
        return spans


def _clean(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as transformers passes it to a chat template.

    Fields that are None are left out. If a field of `_REASONING` is present, its text is in the
    field "reasoning_content", and in the field "thinking" unless the message has its own.
    """
    kept = {name: value for name, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in _REASONING if name in kept), None)
    if reasoning is None:
        return kept
    return {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _to_json(value: Any, *given: Any, **named: Any) -> str:
    # `given` are options by position, in the order of the filter of transformers.
    options = zip(("ensure_ascii", "indent", "separators", "sort_keys"), given, strict=False)
    return json.dumps(value, **{"ensure_ascii": False, **dict(options), **named})


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _limit_time(seconds: float) -> None:
    """Let SIGPROF end the process after some seconds of processor time; 0: no limit."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _answer(request: dict[str, Any], template: Template | None) -> tuple[Any, Template]:
    if template is None:
        version = tuple(map(int, re.findall(r"\d+", jinja2.__version__)[:3]))
        if version < LEAST_JINJA:
            needed = ".".join(map(str, LEAST_JINJA))
            _raise(f"jinja2 {jinja2.__version__} is too old: {needed} or newer is needed")
        return {}, Template(request["source"], request["tokens"], request["time"])
    return template.render(request["messages"], request["tools"], request["prompt"]), template


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on an interrupt, the parent ends this process
    _limit_memory()
    template = None
    for line in sys.stdin.buffer:
        _limit_time(SECONDS)
        try:
            request = json.loads(line.decode("utf-8", "surrogatepass"))
            answer, template = _answer(request, template)
            data = json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")
        except Exception as error:  # a template may raise any exception
            reason = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
            if isinstance(error, MemoryError):
                reason = f"it takes more than {MEMORY_BYTES} bytes of memory"
            data = json.dumps({"error": reason}).encode()
        _limit_time(0)
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
