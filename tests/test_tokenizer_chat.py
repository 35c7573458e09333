"""Conversations rendered and encoded by a Tokenizer."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from llmgpu import Tokenizer
from llmgpu.errors import InputError, VocabularyError
from tests.test_tokenizer import chatting

MESSAGES = [
    {"role": "user", "content": "low?"},
    {"role": "assistant", "content": "newest déjà"},
    {"role": "user", "content": "so"},
]


def test_conversations_by_chatml() -> None:
    tokenizer = chatting()
    for prompt in (False, True):
        ids, mask = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=prompt)
        text = tokenizer.decode(ids)
        assert text == tokenizer.render_chat_template(MESSAGES, add_generation_prompt=prompt)
        assert text.endswith("<|im_start|>assistant\n") == prompt
        assert text.startswith("<|im_start|>user\nlow?<|im_end|>\n<|im_start|>assistant\nnewest")
        assert ids.dtype == np.uint32 and mask.dtype == np.bool_ and mask.shape == ids.shape
        assert tokenizer.decode(ids[mask]) == "newest déjà<|im_end|>"
        assert tokenizer.vocabulary.special_tokens["<|im_start|>"] in ids
    with pytest.raises(InputError, match="the conversation, message 1: unknown role 'x'"):
        tokenizer.apply_chat_template([{"role": "x", "content": ""}])
    with pytest.raises(InputError, match="there are no messages"):
        tokenizer.apply_chat_template([])
    plain = Tokenizer.train_from_iterator(["low low"], vocab_size=257, device="cpu")
    with pytest.raises(VocabularyError, match="neither a chat template"):
        plain.apply_chat_template(MESSAGES)


def test_conversations_by_a_template() -> None:
    """In one process for all of them; a pickle and a fork have processes of their own."""
    pytest.importorskip("jinja2")
    tokenizer = chatting(
        "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}{% if tools %}{{ tools | length }}{% endif %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    for _ in range(2):
        ids, mask = tokenizer.apply_chat_template(MESSAGES)
        assert tokenizer.decode(ids) == "u:low?a:newest déjà<|im_end|>u:so"
        assert tokenizer.decode(ids[mask]) == "newest déjà<|im_end|>"
    assert tokenizer.render_chat_template(MESSAGES, tools=[{}, {}]).endswith("u:so2")
    ids, mask = tokenizer.apply_chat_template(MESSAGES[:1], add_generation_prompt=True)
    assert tokenizer.decode(ids) == "u:low?a:" and not mask.any()
    for begin in ("", "<", "", "["):  # passed instead: the last one is kept, the others end
        other = begin + "{% for m in messages %}{{ m.content }}|{% endfor %}"
        text = tokenizer.render_chat_template(MESSAGES, chat_template=other)
        assert text == begin + "low?|newest déjà|so|"
        ids, mask = tokenizer.apply_chat_template(MESSAGES, chat_template=other)
        assert (tokenizer.decode(ids), tokenizer.decode(ids[mask])) == (text, "newest déjà|")
    assert tokenizer.render_chat_template(MESSAGES) == "u:low?a:newest déjà<|im_end|>u:so"
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.render_chat_template(MESSAGES) == "u:low?a:newest déjà<|im_end|>u:so"
    other = "{% for m in messages %}{{ m.content }}|{% endfor %}"
    assert tokenizer.render_chat_template(MESSAGES, chat_template=other).startswith("low?|newest")
    ids, mask = tokenizer.apply_chat_template(MESSAGES[:1], chat_template="{{ messages | length }}")
    assert tokenizer.decode(ids) == "1" and not mask.any()
    assert tokenizer.render_chat_template(MESSAGES).startswith("u:low?")
    odd = chatting("{{ messages | length }}{% if add_generation_prompt %}{% endif %}x")
    assert odd.render_chat_template(MESSAGES[:1], add_generation_prompt=True) == "1x"
    odd = chatting("{% if add_generation_prompt %}a{% endif %}b")
    with pytest.raises(InputError, match="differently when a reply is asked for"):
        odd.render_chat_template(MESSAGES[:1], add_generation_prompt=True)
