"""Chat templates, rendered in a process with limits: `llmgpu.text.chat_worker`.

Jinja's sandbox keeps a template away from files and from the rest of Python. But a template may
still loop forever or write endless text, so the process has limits on time and memory. Exceeding a
limit ends the process or raises an error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from llmgpu.closing import Closing
from llmgpu.errors import InputError
from llmgpu.input_files import quote
from llmgpu.text.chat import Parts
from llmgpu.text.compressions import Package

JINJA = Package("jinja2", "chat")

DATE = "SOURCE_DATE_EPOCH"

_PROGRAM = Path(__file__).with_name("chat_worker.py")


def chosen_time() -> int | None:
    """Return the current time that templates see, in seconds: SOURCE_DATE_EPOCH; None if unset.

    Raises InputError if SOURCE_DATE_EPOCH is not a number.
    """
    text = os.environ.get(DATE)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        raise InputError(f"{DATE} is {quote(text)}, not a number of seconds since 1970")
    return int(text)


class TemplateRenderer(Closing):
    """Renders conversations by a chat template; see `llmgpu.text.chat.PlainRenderer`."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Compile a template in a new process.

        source: the template. tokens: texts of special tokens, by their names in the template. The
        template sees SOURCE_DATE_EPOCH as the current time.

        Raises InputError for a template with an error, or if the package for templates is missing.
        """
        JINJA.require("chat template")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            request = {"source": source, "tokens": dict(tokens), "time": chosen_time()}
            self._ask(request, "the chat template")
        except BaseException:
            self.close()
            raise

    def render(
        self, messages: list[dict[str, Any]], tools: object, where: str, *, prompt: bool = False
    ) -> Parts:
        """Return the text of a conversation; `where` is the row's name in errors."""
        request = {"messages": messages, "tools": tools, "prompt": prompt}
        answer = self._ask(request, f"{where}: the chat template")
        text, spans = answer["text"], answer["spans"]
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        if edges != sorted(edges):
            raise InputError(f"{where}: the chat template has nested generation blocks")
        return [(text[a:b], bool(i % 2)) for i, (a, b) in enumerate(pairwise(edges)) if a < b]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: dict[str, Any], what: str) -> dict[str, Any]:
        """Send a request and return the answer; InputError if the process has ended or failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            line = json.dumps(request, ensure_ascii=False) + "\n"
        except RecursionError:
            raise InputError(f"{what} can't take data that is nested this deep") from None
        with suppress(BrokenPipeError):  # the process has ended, so its answer is empty
            self._process.stdin.write(line.encode("utf-8", "surrogatepass"))
            self._process.stdin.flush()
        data = self._process.stdout.readline()
        if not data:
            raise InputError(f"{what} {self._describe_end()}")
        answer: dict[str, Any] = json.loads(data.decode("utf-8", "surrogatepass"))
        if "error" in answer:
            hint = ""
            if "'strftime_now' is undefined" in answer["error"]:
                hint = f": set {DATE} to the time that it should use, in seconds since 1970"
            raise InputError(f"{what} fails: {answer['error']}{hint}")
        return answer

    def _describe_end(self) -> str:
        code = self._process.wait()
        if sys.platform != "win32" and code == -signal.SIGPROF:
            return "takes too long: more than 10 seconds of processor time for one conversation"
        return f"ended its process with {code}"
