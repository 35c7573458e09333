"""How to get an encoder: the one for a backend and a match rule, with all that goes around it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from llmgpu.backend import Backend, is_for_gpu
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.encoder_host import HostEncoder, stream_lookahead
from llmgpu.bpe.encoding.encoder_shared import SharedEncoder
from llmgpu.bpe.encoding.special_encoding import with_special_tokens
from llmgpu.bpe.encoding.special_options import NO_SPECIAL_TOKENS, SpecialOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import default_threads, library
from llmgpu.errors import CapacityError
from llmgpu.forking import delaying_forks

if TYPE_CHECKING:
    from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder
    from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder
    from llmgpu.gpu import Device

_log = logging.getLogger("llmgpu")
_kept: dict[object, Encoder] = {}  # by what they were opened for, see `keep_encoders`
_keeps = False


def keep_encoders() -> None:
    """Let all commands from here on share encoders, which know the words of earlier texts.

    They encode one text at a time.
    """
    global _keeps
    _keeps = True


def prepare_vocabulary(
    vocabulary: Vocabulary, device: str, text_bytes: int | None = None
) -> Callable[[], object]:
    """Make a vocabulary's tables for a device in a thread, while another opens the device.

    device: as for --device. text_bytes: of the text, if that is known; ``auto`` opens a device for
        much.

    Returns what waits for them, and raises nothing: what making them raised, `open_encoder` does.
    """
    is_opened = is_for_gpu(text_bytes) if device == "auto" else device != "cpu"
    if not is_opened or vocabulary.match != "bpe":
        return lambda: None
    from concurrent.futures import ThreadPoolExecutor

    thread = ThreadPoolExecutor(1, thread_name_prefix="llmgpu-pack")
    making = thread.submit(_prepare_tables, vocabulary)
    thread.shutdown(wait=False)
    return making.exception


@delaying_forks()
def _prepare_tables(vocabulary: Vocabulary) -> None:
    from llmgpu.bpe.encoding.encoder_gpu import prepare_tables

    prepare_tables(vocabulary)


def open_encoder(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None = None,
    *,
    special: SpecialOptions = NO_SPECIAL_TOKENS,
    threads: int | None = None,
    text_bytes: int | None = None,
) -> Encoder:
    """Return an encoder for a vocabulary: by its match rule, after its normalizer.

    slice_bytes: bytes of text to work on at a time. threads: how many work at a time without a
        device. text_bytes: of the first text, if that is known. The ids depend on none of them.
    special: the special tokens that text may spell, and those around documents.

    Raises VocabularyError if `special` names a token that the vocabulary does not have or there are
    too many merges, DeviceError if the device's memory or limits are too small.
    """
    encoder = open_matching_encoder(
        vocabulary, backend, slice_bytes, threads=threads, text_bytes=text_bytes
    )
    return with_special_tokens(encoder, vocabulary, special)


def open_matching_encoder(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None = None,
    *,
    threads: int | None = None,
    text_bytes: int | None = None,
) -> Encoder:
    """Return an encoder of normalized text without special tokens; otherwise as `open_encoder`."""
    key = vocabulary.fingerprint, backend.device, slice_bytes, threads
    if backend.joining is None and key in _kept:
        return _kept[key]
    encoder = _open_new(vocabulary, backend, slice_bytes, threads, text_bytes)
    if _keeps and backend.joining is None:
        _kept[key] = encoder
    return encoder


def _open_new(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None,
    threads: int | None,
    text_bytes: int | None,
) -> Encoder:
    if backend.joining is not None and stream_lookahead(vocabulary) is None:
        return _open_shared_encoder(vocabulary, backend, slice_bytes, threads, text_bytes)
    if backend.joining is not None:
        backend = backend.joining()
        try:
            return _open_new(vocabulary, backend, slice_bytes, threads, text_bytes)
        except CapacityError as error:
            _log.warning("%s; using the CPU", error)
            return open_host_encoder(vocabulary, slice_bytes, threads)
    if backend.device is None:
        return open_host_encoder(vocabulary, slice_bytes, threads)
    return _open_device_encoder(vocabulary, backend.device, slice_bytes, text_bytes)


@delaying_forks()
def _open_device_encoder(
    vocabulary: Vocabulary,
    device: Device,
    slice_bytes: int | None = None,
    text_bytes: int | None = None,
) -> GpuEncoder | GpuGreedyEncoder:
    # What needs a GPU package is imported only where there is a device.
    if vocabulary.match == "bpe":
        from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder

        return GpuEncoder(device, vocabulary, slice_bytes, text_bytes=text_bytes)
    from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder

    return GpuGreedyEncoder(device, vocabulary, slice_bytes)


@delaying_forks()
def open_host_encoder(
    vocabulary: Vocabulary, slice_bytes: int | None = None, threads: int | None = None
) -> HostEncoder:
    """Return an encoder on the CPU engine, or on NumPy without one; by the match rule alone."""
    threads = threads or default_threads()
    if library() is None:
        from llmgpu.bpe.encoding import encoder_numpy

        return encoder_numpy.NumpyEncoder(
            vocabulary, slice_bytes or encoder_numpy.SLICE_BYTES, threads
        )
    from llmgpu.bpe.encoding import encoder_c

    return encoder_c.CpuEncoder(vocabulary, slice_bytes or encoder_c.SLICE_BYTES, threads)


def _open_shared_encoder(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None,
    threads: int | None,
    text_bytes: int | None,
) -> SharedEncoder:
    """Return an encoder on the host that the devices which join `backend` help."""
    assert backend.joining is not None
    joined = [cache(joining) for joining in (backend.joining, *backend.others)]

    def open_device(joining: Callable[[], Backend]) -> GpuEncoder | GpuGreedyEncoder | None:
        device = joining().device
        if device is None:
            return None
        return _open_device_encoder(vocabulary, device, text_bytes=text_bytes)

    def on_share(text_bytes: int, device: int) -> None:
        name = joined[device - 1]().description if device else backend.description
        backend.shares[name] = backend.shares.get(name, 0) + text_bytes

    host = open_host_encoder(vocabulary, slice_bytes, threads)
    devices = [cache(partial(open_device, joining)) for joining in joined]
    shared = SharedEncoder(host, devices, on_share, join_from=backend.join_from)
    shared.expect(text_bytes)
    return shared
