"""Models of llmgpu in EleutherAI's lm-evaluation-harness, as ``--model llmgpu``.

lm_eval finds the models of its own package and of modules that have been imported. So
``python -m llmgpu.lm_eval`` imports this module and runs lm_eval's command::

    python -m llmgpu.lm_eval run --model llmgpu --model_args path=FOLDER --tasks arc_easy

Texts are encoded and cut into windows as lm_eval does for models of transformers, so that a model
gets the same results in both libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from tqdm import tqdm
except ModuleNotFoundError as error:
    _MISSING = f"llmgpu.lm_eval needs the package lm_eval: pip install 'llmgpu[lm-eval]' ({error})"
    if __name__ == "__main__":
        raise SystemExit(f"error: {_MISSING}") from error
    raise ModuleNotFoundError(_MISSING) from error

from llmgpu.backend import select_backend
from llmgpu.errors import InputError
from llmgpu.lm.checkpoints.checkpoint import open_model
from llmgpu.lm.config import SHORT_CONTEXT
from llmgpu.lm.data.inputs import default_separator
from llmgpu.lm.generator import Continuation, Generator
from llmgpu.lm.model import load_model
from llmgpu.lm.options import SamplingOptions
from llmgpu.lm.sampling import Sampler
from llmgpu.lm.scoring import Request, Score, Scorer
from llmgpu.tokenizer import Tokenizer

_MOST_NEW = 256  # largest number of ids of a continuation, unless a task sets another limit
_ANY_DEVICE = "cuda:0"  # the device that lm_eval's command passes without --device
_TOGETHER = 8  # continuations generated at a time with --batch_size auto


@register_model("llmgpu")
class EvaluatedModel(TemplateLM):  # type: ignore[misc]
    """The model of a run, a checkpoint or a Hugging Face model folder."""

    def __init__(
        self,
        path: str,
        device: str = "auto",
        batch_size: int | str = 1,
        max_length: int | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        """Load the model in the folder `path`.

        device: a value of llmgpu's --device; "cuda:0", lm_eval's default, means "auto". batch_size:
        continuations to generate at a time; `Scorer` chooses the batches of scoring. max_length:
        most ids that the model sees at a time; default: the model's longest sequence, but at most
        2048. max_batch_size: ignored.

        Raises CheckpointError if the model can't be used, VocabularyError if the tokenizer can't,
        DeviceError if the device can't, and InputError for a max_length beyond the model's longest
        sequence.
        """
        super().__init__()
        self._saved = open_model(path)
        self.tokenizer = Tokenizer(self._saved.vocabulary, device="cpu")
        longest = self._saved.config.max_positions or self._saved.config.seq_len
        self.max_length = max_length or min(longest, SHORT_CONTEXT)
        backend = select_backend("auto" if device == _ANY_DEVICE else device, matrices=True)
        self._model = load_model(self._saved, backend, self.max_length)
        self._scorer = Scorer(self._model, self.max_length, self.max_length)
        self._batch_size = int(batch_size) if str(batch_size).isdecimal() else _TOGETHER

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text; raises InputError if the model has no such id."""
        separator = default_separator(self._saved.vocabulary)
        found = next((x for x in (self._saved.eos_id, separator) if x is not None), None)
        if found is None:
            raise InputError(f"{self._saved.folder}: the model has no id between documents")
        return found

    @property
    def prefix_token_id(self) -> int:
        """The id that is put before a text that has no context."""
        first = self._saved.bos_id
        return self.eot_token_id if first is None else first

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **unused: Any
    ) -> list[int]:
        """Return the ids of a text, in which all special tokens are allowed.

        add_special_tokens: add the special tokens that the tokenizer puts around a text. Default:
        add them unless the text begins with the text of `prefix_token_id`.
        """
        if add_special_tokens is None:
            first = self._saved.vocabulary.tokens[self.prefix_token_id].decode(errors="replace")
            add_special_tokens = not string.startswith(first)
        ids: list[int] = self.tokenizer.encode(
            string, dtype=list, allowed_special="all", add_special_tokens=add_special_tokens
        )
        return ids

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[object, list[int], list[int]]],
        disable_tqdm: bool = False,
        **unused: Any,
    ) -> list[tuple[float, bool]]:
        """Score continuations, each after a context.

        Returns for each continuation its log-likelihood, and whether each of its ids was the
        likeliest next id.
        """
        asked = []
        for _, context, continuation in requests:
            kept = max(self.max_length, len(continuation)) + 1
            ids = (context + continuation)[-kept:]
            asked.append(Request(np.array(ids, np.uint32), len(ids) - len(continuation)))
        return [
            (_sum(score), bool(score.likeliest.all()))
            for score in self._scores(asked, disable_tqdm)
        ]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of each text; windows of a long text score each id once."""
        texts = [[self.prefix_token_id, *self.tok_encode(each.args[0])] for each in requests]
        asked = [Request(np.array(ids, np.uint32)) for ids in texts]
        return [_sum(score) for score in self._scores(asked, disable_tqdm)]

    def _scores(self, asked: Sequence[Request], is_quiet: bool) -> Any:
        return tqdm(self._scorer.scores(asked), "Scoring", len(asked), disable=is_quiet)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a continuation of each context, up to a stop string or the end of the text."""
        made = [self._continuation(*each.args) for each in requests]
        size = min(self._batch_size, max(1, len(made)))
        generator = Generator(self._model, self._saved.vocabulary.size, size)
        progress = tqdm(desc="Generating", total=len(made), disable=disable_tqdm)
        with progress:
            for _, token in generator.continue_all(made):
                progress.update(token is None)
        return [each.text.data.decode("utf-8", "replace") for each in made]

    def _continuation(self, context: str, wanted: Mapping[str, Any]) -> Continuation:
        """Return the request that continues a context.

        Raises InputError if `max_length` leaves no room for a context and max_gen_toks new ids.
        """
        options = normalize_gen_kwargs(dict(wanted), _MOST_NEW)
        count = int(options["max_gen_toks"])
        if count >= self.max_length:
            raise InputError(
                f"max_gen_toks is {count}, but the model sees {self.max_length} ids at a time: use "
                "--gen_kwargs max_gen_toks=NUMBER with fewer"
            )
        ids = self.tok_encode(context)[count - self.max_length :] or [self.prefix_token_id]
        sampling = SamplingOptions(
            temperature=float(options.get("temperature") or 0.0),
            top_k=int(options.get("top_k") or 0),
            top_p=float(options.get("top_p") or 1.0),
            repetition_penalty=float(options.get("repetition_penalty") or 1.0),
        )
        strings = [text.encode() for text in options["until"] if text]
        given = ids, count, Sampler(sampling), self._saved.stop_ids | {self.eot_token_id}
        return Continuation(*given, vocabulary=self._saved.vocabulary, stop_strings=strings)

    @property
    def tokenizer_name(self) -> str:
        """The fingerprint of the vocabulary. lm_eval caches requests under this name."""
        return self._saved.vocabulary.fingerprint

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the source of the model's chat template; None without a template."""
        chat = self._saved.vocabulary.chat
        return chat.source if chat_template and chat else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation; errors: see `Tokenizer.render_chat_template`."""
        return self.tokenizer.render_chat_template(
            chat_history, add_generation_prompt=add_generation_prompt
        )


def _sum(score: Score[Request]) -> float:
    return float(score.log_likelihoods.sum(dtype=np.float64))


if __name__ == "__main__":
    cli_evaluate()
