"""The guide as a site: an anchor an option, headings in order, and nothing cut off in a browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

from llmgpu.cli import COMMANDS, cli

ROOT = Path(__file__).parents[1]
WIDTHS = (390, 1280)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OF_SPHINX = {"genindex.html", "py-modindex.html", "search.html"}  # pages that are not of the guide


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built guide."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("guide")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-E", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(folder / "trees"), str(ROOT / "docs"), str(folder / "site")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


def pages(site: Path) -> list[Path]:
    return [path for path in sorted(site.glob("*.html")) if path.name not in OF_SPHINX]


class Content(HTMLParser):
    """The headings, ids, pictures and tables of a page, and the classes around its tables."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.texts_of_pictures: list[str] = []
        self.styles: list[str] = []
        self.before_tables: list[str] = []
        self._last = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "img":
            self.texts_of_pictures.append(values.get("alt", ""))
        if tag == "table":
            self.before_tables.append(self._last)
        if tag == "link":
            self.styles.append(values.get("href", "").split("?")[0])
        self._last = values.get("class", "")


def test_each_option_has_a_heading_and_an_anchor(site: Path) -> None:
    page = site / "command-line.html"
    text, ids = page.read_text(encoding="utf-8"), Content(page).ids
    wanted = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                flag = max(option.opts, key=len)
                wanted.append(f"{name}{flag}")
                heading = rf'<section class="option" id="{name}{flag}">\s*<h4>.*?</h4>'
                found = re.search(heading, text)
                assert found and f">{flag}<" in found[0], (name, flag)
    assert len(wanted) > 250
    assert len(ids) == len(set(ids))
    assert "–" not in re.sub(r"(?s)^.*?<article", "", text)  # no dashes in place of two signs


def test_headings_are_in_order_and_pictures_have_texts(site: Path) -> None:
    pictures = 0
    for page in pages(site):
        content = Content(page)
        levels = content.headings
        assert levels[0] == 1 and levels.count(1) == 1, page.name
        steps = [after - before for before, after in pairwise(levels)]
        assert max(steps, default=0) <= 1, page.name
        assert all(len(text) > 20 for text in content.texts_of_pictures), page.name
        assert all("table-wrapper" in around for around in content.before_tables), page.name
        assert "_static/guide.css" in content.styles
        pictures += len(content.texts_of_pictures)
    assert pictures >= 2


def test_the_first_page_installs_succeeds_and_shows_examples(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    heads = re.findall(r"<h2>(.*?)<", text)
    assert heads[:3] == ["Install", "The first five minutes", "Examples"]


MEASURE = """
const found = [];
for (const frame of document.querySelectorAll("iframe")) {
  const inner = frame.contentDocument, root = inner.documentElement, cut = [];
  const view = frame.contentWindow, width = root.clientWidth;
  for (const node of inner.querySelectorAll("article *")) {
    let box = node.parentElement;
    while (box && !(/auto|scroll/.test(view.getComputedStyle(box).overflowX)
                    && !box.matches("pre, .main, body, html"))) box = box.parentElement;
    const inPre = node.closest("pre") && !node.matches("pre");
    if (!box && !inPre && node.getBoundingClientRect().right > width + 1)
      cut.push(node.tagName + ": " + node.textContent.slice(0, 60));
    if (node.matches("pre") && node.scrollWidth > node.clientWidth + 1)
      cut.push("pre: " + node.textContent.slice(0, 60));
  }
  found.push({name: frame.title, width: frame.clientWidth, needed: root.scrollWidth, cut,
    surface: view.getComputedStyle(inner.body).backgroundColor});
}
document.body.textContent = "";
const answer = document.createElement("pre");
answer.textContent = JSON.stringify(found);
document.body.append(answer);
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_nothing_is_cut_off_in_a_browser(site: Path, tmp_path: Path, scheme: str) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)}")
    frames = "".join(
        f'<iframe title="{page.name}" src="{page.name}" '
        f'style="width:{width}px;height:900px;border:0"></iframe>'
        for page in pages(site)
        for width in WIDTHS
    )
    script = f"addEventListener('load', () => {{{MEASURE}}})"
    outer = site / f"frames-{scheme}.htm"
    outer.write_text(f'<meta charset="utf-8"><body>{frames}<script>{script}</script>')
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    options += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    done = subprocess.run(
        [browser, *options, "--virtual-time-budget=20000", "--dump-dom", outer.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    answer = re.search(r"<pre>(.*)</pre>", done.stdout, re.DOTALL)
    assert done.returncode == 0 and answer, done.stderr[-500:]
    found: list[dict[str, Any]] = json.loads(html.unescape(answer[1]))
    assert len(found) == len(WIDTHS) * len(pages(site))
    assert [each for each in found if each["cut"] or each["needed"] > each["width"]] == []
    light = {each["surface"] == "rgb(255, 255, 255)" for each in found}
    assert light == {scheme == "light"}
