"""The tour of the kernels: every kernel is on the page, with all that its head says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_kernel_source import HEADER_LINE, KERNELS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "kernels.md"
# Kernels of the documents that llmgpu implements, by the file that implements one or several.
SOURCES = {
    "recount/00_word_boundary": "bpe_word_boundary",
    "recount/01_clear_table": "clear_table",
    "recount/02_pair_count": "bpe_pair_count_b",
    "recount/03_find_max": "find_max4",
    "recount/05_setup_merge": "find_max_final_det setup_merge",
    "recount/08_merge_reduce": "bpe_merge_reduce_b",
    "recount/09_scan_blocks": "scan_pass1 scan_pass2 scan_pass3",
    "recount/12_finalize_compact": "bpe_finalize_compact_b",
    "trie/03_tokenizer_chunked": "trie_tokenizer_chunked",
    "trie/04_prefix_sum": "trie_prefix_sum",
    "trie/05_tokenizer_compact": "trie_tokenizer_compact",
    "lm/01_embed_lookup": "embed_lookup_w16",
    "lm/01_embed_lookup_rows": "embed_lookup",
    "lm/01_embed_backward": "embed_backward",
    "lm/07_cross_entropy": "cross_entropy",
    "lm/07_sum_losses": "sum_losses",
    "lm/08_cast_f32_to_f16": "cast_f32_to_f16",
    "lm/08_cast_f16_to_f32": "cast_f16_to_f32",
    "lm/12_adamw_update": "adamw_update_f16",
    "lm/12_adamw_8bit_update": "adamw_8bit_update_f16",
    "bench/embed_lookup_2d": "embedding_lookup_kernel",
    "bench/embed_lookup_rows_scalar": "embedding_lookup_optimized_kernel",
}


@pytest.fixture(scope="module")
def tour() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_tour", ROOT / "docs" / "kernel_tour.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_kernel_is_on_the_page_once(tour: ModuleType) -> None:
    links = re.findall(r"\]\(\.\./wgsl/(\S+)\)", tour.fill_page(PAGE.read_text(encoding="utf-8")))
    assert sorted(links) == KERNELS


@pytest.mark.parametrize("file", KERNELS)
def test_the_page_has_all_of_a_head(tour: ModuleType, file: str) -> None:
    head = tour.read_head(file)
    text = (tour.WGSL / file).read_text(encoding="utf-8")
    listed = [(number, name, access) for number, name, access, _ in head.bindings]
    assert listed == HEADER_LINE.findall(text) and listed
    assert head.name and head.purpose and head.dispatch
    described = tour.describe(head)
    assert described.startswith(f"### {head.name}\n") and "Dispatch: " in described
    formulas = [line[5:] for line in text.split("binding 0")[0].splitlines() if line[:5] == "//   "]
    unescaped = re.sub(r"\\(.)", r"\1", described)
    for line in formulas:  # also the lines of a list that are continued
        assert line.strip() in described or line.strip() in unescaped


@pytest.mark.parametrize(
    ("file", "name"), [(file, name) for file, names in SOURCES.items() for name in names.split()]
)
def test_kernels_of_the_sources_are_found_by_their_names(
    tour: ModuleType, file: str, name: str
) -> None:
    assert name in re.findall(r"\w+", tour.read_head(f"{file}.wgsl").source)


def test_a_table_has_all_kernels_of_the_sources(tour: ModuleType) -> None:
    rows = tour.source_table().splitlines()[2:]
    listed = {row.split("`")[1]: row for row in rows}
    for file, names in SOURCES.items():
        assert all(f"`{file}.wgsl`" in listed[name] for name in names.split())
    assert len(rows) == len(listed) and listed.keys() == set(" ".join(SOURCES.values()).split())
    assert tour.source_table() in tour.fill_page(PAGE.read_text(encoding="utf-8"))


def test_prose_is_no_markup(tour: ModuleType) -> None:
    assert tour._escaped("a * b_c `x_y` [d]") == r"a \* b\_c `x_y` \[d\]"
    lines = ["Steps:", "- one", "  and more", "  x = y"]
    assert tour._markdown(lines) == "Steps:\n- one\n  and more\n  x = y"
    assert tour._markdown(["As in", "  x = y"]) == "As in\n\n```text\nx = y\n```"


def test_a_head_without_a_dispatch_is_an_error(
    tour: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.wgsl").write_text("// x: a purpose.\n@compute @workgroup_size(1)\nfn x() {\n}\n")
    monkeypatch.setattr(tour, "WGSL", tmp_path)
    with pytest.raises(ValueError, match="lacks its purpose or its dispatch"):
        tour.read_head("x.wgsl")
