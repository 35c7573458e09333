"""The numbers of results as cells."""

from __future__ import annotations

from llmgpu.bench.report.tables import MEASURES, SHARE_OF_FLOOR, SPEED_UP, TEXT_RATE, TOKEN_RATE
from llmgpu.bench.results import Result


def test_measures_of_a_result() -> None:
    rates = {"mb_per_second": 12.3, "tokens_per_second": 4567, "share_of_floor": 0.5}
    result = Result("tokenize", "NumPy", job="a job", **rates)  # type: ignore[arg-type]
    assert TEXT_RATE.text(result) == "12.3 MB/s"
    assert (TOKEN_RATE.text(result), TOKEN_RATE.full_text(result)) == ("4.57 K", "4.57 K tokens/s")
    assert SHARE_OF_FLOOR.text(result) == "50 %"
    assert SPEED_UP.text(result) == "-"
    assert len({measure.key for measure in MEASURES}) == len(MEASURES)
