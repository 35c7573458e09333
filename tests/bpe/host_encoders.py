"""The encoders that need no device: tests of what they have in common run with each of them."""

from __future__ import annotations

from collections.abc import Callable

from llmgpu.bpe.encoding import encoder_c
from llmgpu.bpe.encoding.encoder_c import CpuEncoder, make_c_vocabulary
from llmgpu.bpe.encoding.encoder_host import HostEncoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import library


def find_cuts(vocabulary: Vocabulary) -> None:
    """Let the engine cut words of short texts, too, if the vocabulary has cuts."""
    has_bytes = vocabulary.unknown_token is None or not vocabulary.missing_bytes
    if has_bytes and vocabulary.pieces is None:
        make_c_vocabulary(vocabulary).find_cuts()


def cutting_cpu_encoder(
    vocabulary: Vocabulary, slice_bytes: int = encoder_c.SLICE_BYTES, threads: int = 1
) -> CpuEncoder:
    """Return the encoder on the CPU engine that cuts words of short texts, too."""
    find_cuts(vocabulary)
    return CpuEncoder(vocabulary, slice_bytes, threads)


# Takes a vocabulary, and by choice slice_bytes and threads.
HOST_ENCODERS: list[Callable[..., HostEncoder]] = [NumpyEncoder]
if library() is not None:
    HOST_ENCODERS += [CpuEncoder, cutting_cpu_encoder]
