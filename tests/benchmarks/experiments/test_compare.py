"""`auto`'s comparisons are computed as they are described."""

import pytest

from benchmarks import variants
from benchmarks.experiments import compare


def test_differences_are_paired_by_draw():
    rows = [
        {"variant": v, "epsilon": 1.0, "seed": s, "accuracy": a}
        for v, s, a in (
            ("auto", 0, 0.8),
            ("auto", 1, 0.9),
            ("less", 0, 0.79),
            ("less", 1, 0.88),
            ("less", 2, 0.1),
        )
    ]
    line = variants.table(rows, "auto").splitlines()[-1]
    assert "| -1.50 ± 0.50 |" in line
    assert line.startswith("| less | — | — |")
    cells = compare.by_epsilon(
        [r | {"method": r["variant"]} for r in rows], lambda r: r["method"]
    )[1.0]
    assert variants.paired(cells["auto"], cells["less"]) == pytest.approx([1.0, 2.0])
    assert compare.best(cells)[0] == "auto"


@pytest.mark.parametrize(
    "gaps, said",
    [
        ([-0.4], "within"),
        ([-0.6], "below"),
        ([-2.0, 0.5], "within"),
        ([], ""),
    ],
)
def test_within_is_half_a_point_or_two_standard_errors(gaps, said):
    assert compare.verdict(gaps) == said
