"""Sums of a part travel as float64, which holds whole numbers up to 2**53 alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from dphead.privacy.contract import ReleaseSpec, SumRequest
from dphead.privacy.statistics import Params, SigmoidHessians
from dphead.sums.parts import EXACT, SumOfParts


def test_a_part_whose_sum_float64_could_round_is_refused_before_it_is_asked():
    query, asked = SigmoidHessians(2), []
    n_rows = 2 * (EXACT // query.most() + 1)
    rows: Any = SimpleNamespace(n_rows=n_rows, n_features=3, group_cap=None)
    spec = ReleaseSpec("hessians", query.name, 1.0, 1.0, n_rows)
    request = SumRequest(query, Params(), rows, spec, 1.0)
    processes: Any = SimpleNamespace(count=2, ask=lambda *part: asked.append(part))
    with pytest.raises(ValueError, match="Use more processes"):
        SumOfParts(processes, rows)._send(query, request, 1.0)
    assert asked == []
