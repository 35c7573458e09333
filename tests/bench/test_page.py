"""The page of a record: whole, valid, escaped, and readable in a browser at any width."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from llmgpu.bench import PARTS
from llmgpu.bench.report import draw_report
from llmgpu.bench.results import Record, load_record, read_record
from llmgpu.charts import HEIGHT, WIDTH
from llmgpu.cli import COMMANDS
from tests.bench.conftest import given
from tests.bench.test_compare import record, result

HTML = "{http://www.w3.org/1999/xhtml}"
RECORDED = sorted((Path(__file__).parents[2] / "docs" / "recorded").glob("*.json"))
NASTY = "</style><script>alert('1')</script>&amp;\"\0\ud800\N{SNOWMAN} " + "long" * 60
WIDTHS = (380, 760, 1020, 1280)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def draw(plain: dict[str, Any]) -> str:
    return draw_report(read_record(plain))


class Page:
    """A page that was parsed, as XML."""

    def __init__(self, drawn: str) -> None:
        self.root = ElementTree.fromstring(drawn.encode())
        self.text = " ".join("".join(self.root.itertext()).split())

    def all(self, name: str, kind: str | None = None) -> list[ElementTree.Element]:
        found = self.root.iter(f"{HTML}{name}")
        return [node for node in found if kind is None or kind in str(node.get("class")).split()]


class Tags(HTMLParser):
    """Finds what is loaded from elsewhere, or runs."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)


def kernel(number: int = 1, **more: Any) -> Any:
    median = 0.001 * number
    rates = {"bytes_per_second": 1e6 * number / median, "share_of_floor": 0.5 / number}
    rates |= {"bytes": 1e6 * number, "operations": 4e6, "operations_per_second": 4e6 / median}
    sizes = {"job": f"{number} x 10", "variant": f"kernel {number}"}
    return result("kernels", median=median, **sizes) | rates | more


LIMITS = {"NumPy": {"bytes_per_second": 2e9, "operations_per_second": 8e9}}


@pytest.mark.slow
def test_page_of_a_run_is_valid_and_whole(measured: Record) -> None:
    page = Page(draw_report(measured))
    assert [node.get("id") for node in page.all("h2")] == list(PARTS)
    assert [len(node.findall(f"{HTML}title")) for node in page.all("head")] == [1]
    rows = [row for table in page.all("table") for row in table.iter(f"{HTML}tr")]
    assert len(rows) > len(measured.results)
    for name in ("cpu", "python", "numpy", "llmgpu"):
        assert str(getattr(measured.machine, name)) in page.text
    assert given(measured.measured) in page.text
    assert "FLOP per byte" in page.text


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_runs_have_pages(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    answered = CliRunner().invoke(COMMANDS["bench"], ["--from", str(path), "--report", str(output)])
    assert answered.exit_code == 0, answered.output
    page = Page(output.read_text())
    record = load_record(str(path))
    timed = [found for found in record.results if found.seconds is not None]
    assert all(found.engine in page.text for found in timed)
    peers = [found for found in timed if found.peer]
    assert len(page.all("tr", "peer")) >= len(peers) > 0
    assert len(page.all("rect")) >= len(timed)


def test_page_needs_nothing_else(measured: Record) -> None:
    drawn = draw_report(measured)
    tags = Tags()
    tags.feed(drawn)
    assert not tags.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert all(address.startswith("#") for address in tags.addresses)
    assert "url(" not in drawn
    assert "@import" not in drawn
    assert set(re.findall(r"\w+://[^\s\"<]*", drawn)) == {"http://www.w3.org/1999/xhtml"}


def nasty() -> dict[str, Any]:
    """A record of which every text is hostile."""
    machine = dict.fromkeys(("platform", "cpu", "python", "llmgpu", "commit", "numpy"), NASTY)
    adapter = dict.fromkeys(("name", "kind", "driver"), NASTY)
    texts: dict[str, Any] = dict.fromkeys(("job", "variant", "answer", "note"), NASTY)
    spent = {"kernels": {"seconds": {NASTY: 1.0, "b": 2.0}, "total": 3.0}, "phases": {}}
    results = [
        result(what, NASTY, start_up={NASTY: 1.0}, **spent, **texts) for what in (*PARTS, NASTY)
    ]
    return record(
        *results,
        kernel(engine=NASTY, answer=NASTY, note=NASTY, variant=NASTY),
        machine=machine | {"cpus": 1, "adapters": [adapter]},
        not_opened={NASTY: NASTY},
        missing_peers={NASTY: NASTY},
        limits={NASTY: LIMITS["NumPy"]},
        measured=NASTY,
        text={"source": NASTY, "bytes": 1, "sha256": NASTY},
        vocabulary={"source": NASTY, "fingerprint": NASTY},
    )


def test_all_text_is_escaped() -> None:
    drawn = draw(nasty())
    page = Page(drawn)
    assert "<script" not in drawn
    assert drawn.count("</style>") == 1
    assert page.text.count("</style><script>alert('1')</script>&amp;\"\\u0000\\ud800") > 20


def test_hostile_records_that_are_valid_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(nasty()))
    Page(draw_report(load_record(str(path))))


def bars(page: Page, title: str) -> list[str]:
    """Return the lengths of the bars of a column."""
    cells = [cell for cell in page.all("td") if cell.get("data-title") == title]
    return [str(bar.get("width")) for cell in cells for bar in cell.iter(f"{HTML}rect")]


def test_bars_are_as_long_as_rates() -> None:
    times = {"NumPy": 25.0, "a GPU": 100.0, "tiktoken 1": 50.0}
    results = [
        result("tokenize", name, mb_per_second=rate, peer=name.startswith("tiktoken"))
        for name, rate in times.items()
    ]
    page = Page(draw(record(*results)))
    assert bars(page, "text") == ["25.00%", "100.00%", "50.00%"]
    assert [row[0].text for row in page.all("tr", "peer")] == ["tiktoken 1"]
    assert "25 MB/s" in page.text


def test_bars_of_what_arithmetic_limits_are_operations() -> None:
    rates = {"bytes_per_second": 1e9, "operations_per_second": 2e12}
    own = result("tokenize", "a GPU", **rates, share_of_copy=0.1, share_of_floor=0.5)
    other = result("tokenize", "tiktoken 1", **rates | {"operations_per_second": 1e12}, peer=True)
    page = Page(draw(record(own, other)))
    assert bars(page, "FLOP/s") == ["100.00%", "50.00%"]
    assert bars(page, "memory") == ["100.00%", "100.00%"]
    assert bars(page, "of limit") == ["50.00%"]  # of the whole limit


def test_results_without_a_common_rate_have_times() -> None:
    results = [result(median=0.5, tokens_per_second=10), result(variant="other")]
    page = Page(draw(record(*results)))
    assert bars(page, "tokens/s") == ["100.00%"]
    medians = [cell.text for cell in page.all("td") if cell.get("data-title") == "median"]
    assert medians == ["500 ms", "1 s"]


def test_what_has_no_time_says_why() -> None:
    missing = result(engine="torch", note="not installed: pip install torch", correct=None)
    del missing["seconds"]
    wrong = result(engine="a GPU", correct=False, answer="NOT the losses of NumPy")
    del wrong["seconds"]
    page = Page(draw(record(result(), missing, wrong)))
    assert "not installed: pip install torch" in page.text
    assert len(page.all("tr", "wrong")) == 1
    assert "an engine gave a wrong answer" in page.text
    assert "interrupted" not in page.text
    assert "interrupted" in Page(draw(record(complete=False))).text


def test_times_of_kernels_have_bars() -> None:
    seconds = {f"kernel {k}": 0.001 * (k + 1) for k in range(15)}
    kernels = {"seconds": seconds, "total": sum(seconds.values())}
    page = Page(draw(record(result(kernels=kernels))))
    names = [str(node.text) for node in page.all("td", "name")]
    assert names[1:] == [f"kernel {k}" for k in range(14, -1, -1)]
    assert bars(page, "time")[:2] == ["100.00%", "93.33%"]
    assert "6 ms, 5 %" in page.text


def places(page: Page) -> list[tuple[float, float]]:
    return [(float(str(node.get("cx"))), float(str(node.get("cy")))) for node in page.all("circle")]


def roofs(page: Page) -> list[list[tuple[float, float]]]:
    """Return the points of each roof."""
    points = [str(node.get("points")).split() for node in page.all("polyline", "roof")]
    return [[(float(x), float(y)) for x, y in (p.split(",") for p in line)] for line in points]


def test_roofline_has_a_dot_for_each_kernel_under_its_roof() -> None:
    kernels = [kernel(number) for number in range(1, 7)]
    page = Page(draw(record(*kernels, limits=LIMITS)))
    dots = places(page)
    assert len(dots) == len(kernels)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in dots)
    assert [x for x, _ in dots] == sorted((x for x, _ in dots), reverse=True)  # fewer FLOP a byte
    ((begin, edge, end),) = roofs(page)
    assert begin[0] < edge[0] < end[0]
    assert begin[1] > edge[1] == end[1]
    numbers = ["".join(node.itertext()) for node in page.all("text", "number")]
    names = [str(node.text) for node in page.all("td", "name")]
    assert numbers == [str(number) for number in range(1, 7)]
    assert names == [f"{n}. kernel {n}: {n} x 10" for n in range(1, 7)]
    assert [c.text for c in page.all("td") if c.get("data-title") == "FLOP/B"][:2] == ["4", "2"]


def test_matrix_units_have_a_roof_of_their_own() -> None:
    rate = 8 * LIMITS["NumPy"]["operations_per_second"]
    best = kernel(operations=1e9, bytes=1e6, operations_per_second=rate)
    limits = LIMITS["NumPy"] | {"matrix_operations_per_second": rate}
    page = Page(draw(record(kernel(2), best, limits={"NumPy": limits})))
    levels = {line[-1][1] for line in roofs(page)}
    assert all(line[-2][1] == line[-1][1] for line in roofs(page))
    assert len(levels) == 2
    assert min(y for _, y in places(page)) == pytest.approx(min(levels), abs=0.1)
    assert "on matrix units, measured" in page.text


def test_dots_are_on_the_roof_when_kernels_reach_the_limit() -> None:
    rate = LIMITS["NumPy"]["operations_per_second"]
    best = kernel(operations=1e9, bytes=1e6, operations_per_second=rate)
    page = Page(draw(record(best, limits=LIMITS)))
    (dot,) = places(page)
    assert dot[1] == pytest.approx(roofs(page)[0][-1][1], abs=0.1)


@pytest.mark.parametrize(
    "more",
    [
        {"operations": 0},
        {"bytes": None},
        {"operations_per_second": None},
        {"operations": 1e29, "bytes": 1e-29},
        {"operations_per_second": 1e-29},
    ],
    ids=str,
)
def test_roofline_of_odd_numbers(more: dict[str, Any]) -> None:
    page = Page(draw(record(kernel(**more), limits=LIMITS)))
    assert "nan" not in page.text.split()
    for x, y in places(page):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_no_roofline_without_limits() -> None:
    assert not places(Page(draw(record(kernel()))))


def test_kernels_stand_beside_other_programs() -> None:
    torch = kernel(engine="torch 2", peer=True)
    page = Page(draw(record(kernel(), torch, kernel(2))))
    titles = [node.text for node in page.all("h3")]
    assert titles == ["NumPy", "kernel 1: 1 x 10", "torch 2"]
    rows = [str(row[0].text) for row in page.all("tbody")[1]]
    assert rows == ["NumPy", "torch 2"]
    assert "kernel 1: 1 x 10" not in [node.text for node in Page(draw(record(kernel()))).all("h3")]


def test_page_on_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record(result())))
    answered = CliRunner().invoke(COMMANDS["bench"], ["--from", str(path), "--report", "-"])
    assert answered.exit_code == 0
    assert len(Page(answered.stdout).all("table")) == 1


def open_in_browser(page: Path, profile: Path, scheme: int) -> str:
    """Return the page's text after scripts have run; scheme: 0 for dark, 1 for light."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)}")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += [f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={scheme}"]
    done = subprocess.run(
        [browser, *options, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MEASURE = """
const found = [];
for (const frame of document.querySelectorAll("iframe")) {
  const inner = frame.contentDocument, root = inner.documentElement;
  const style = frame.contentWindow.getComputedStyle(inner.body);
  found.push({
    width: frame.clientWidth, needed: root.scrollWidth, height: root.scrollHeight,
    surface: style.backgroundColor, ink: style.color, 
    text: [inner.body.innerText, ...[...inner.querySelectorAll("td")].map(
      node => frame.contentWindow.getComputedStyle(node, "::before").content)].join(" "),
    fonts: [...inner.querySelectorAll("text, td, div, p")].map(
      node => parseFloat(frame.contentWindow.getComputedStyle(node).fontSize)),
  });
}
document.body.textContent = "";
const answer = document.createElement("pre");
answer.textContent = JSON.stringify(found);
document.body.append(answer);
"""


def seen(drawn: str, folder: Path, scheme: int) -> list[dict[str, Any]]:
    """Return what a browser makes of a page in frames of WIDTHS."""
    frames = "".join(
        f'<iframe srcdoc="{html.escape(drawn)}" style="width:{width}px;height:900px;border:0">'
        "</iframe>"
        for width in WIDTHS
    )
    script = f"addEventListener('load', () => {{{MEASURE}}})"
    page = folder / f"frames-{scheme}.html"
    page.write_text(f'<meta charset="utf-8"><body>{frames}<script>{script}</script>')
    dumped = open_in_browser(page, folder / "profile", scheme)
    answer = re.search(r"<pre>(.*)</pre>", dumped, re.DOTALL)
    assert answer, dumped[-500:]
    found: list[dict[str, Any]] = json.loads(html.unescape(answer[1]))
    return found


@pytest.mark.slow
def test_browser_shows_it_at_any_width_in_light_and_dark(measured: Record, tmp_path: Path) -> None:
    both = [seen(draw_report(measured), tmp_path, scheme) for scheme in (0, 1)]
    for frames in both:
        assert [frame["width"] for frame in frames] == list(WIDTHS)
        for frame in frames:
            assert frame["needed"] <= frame["width"]
            assert frame["height"] > 1000
            assert measured.machine.cpu in frame["text"]
            assert "tokens/s" in frame["text"]
            assert min(frame["fonts"]) >= 10
    (dark, light) = (frames[0] for frames in both)
    assert dark["surface"] == "rgb(26, 26, 25)"
    assert light["surface"] == "rgb(252, 252, 251)"
    assert dark["ink"] != light["ink"]


def test_browser_shows_long_names_without_overflow(tmp_path: Path) -> None:
    for frame in seen(draw(nasty()), tmp_path, 1):
        assert frame["needed"] <= frame["width"]
        assert "alert('1')" in frame["text"]


def test_the_page_opens_with_headlines_and_folds_times_of_kernels() -> None:
    times = {"seconds": {"one": 1.0, "two": 2.0}, "total": 3.0}
    rows = [
        result("tokenize", "lavapipe", kernels=times),
        result("tokenize", "a GPU", 0.5, kernels=times),
        result("tokenize", "other", peer=True),
    ]
    page = Page(draw(record(*rows)))
    names, texts = (["".join(node.itertext()) for node in page.all(name)] for name in ("dt", "dd"))
    assert (names[0], texts[0]) == (
        "tokenize",
        "a GPU is 2 times as fast as other, the fastest other program "
        "(1 run, 500-500 ms against 1 run, 1-1 s)",
    )
    assert ("median of", "1 run; ±%: half of their range") in zip(names, texts, strict=True)
    assert ("a GPU, kernels, 3 s", "one 1 s, two 2 s") in zip(names, texts, strict=True)
    folds = [str(node[0].text) for node in page.all("details")]
    assert folds == ["lavapipe, kernels, 3 s", "a GPU, kernels, 3 s"]
