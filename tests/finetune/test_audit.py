"""`dphead audit` on the training of a network: the real release, the real noise, a
canary that reaches its clip.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from commands import fitted, refusal, words
from fits import with_noise
from numpy.testing import assert_array_equal

from dphead.analysis import audit as auditing
from dphead.analysis.audit_rows import way_of
from dphead.analysis.audit_transcript import worst_case
from dphead.finetune.audit import audited
from dphead.finetune.gradients import CLIP_INTEGERS
from dphead.finetune.network import TorchSums
from dphead.finetune.settings import Settings
from dphead.planning.plan import make_plan
from dphead.privacy.contract import SumTask
from dphead.privacy.statistic_base import Params
from dphead.solvers.base import ProblemInfo

FACTS = ProblemInfo(20, 3 * 8 * 8, 2)
SURE = 1 - 1e-7  # a sound mechanism fails with odds of at most 2e-7


def prepared(relation="zero_out", **steps):
    given = {"clip_norm": 1e-3, "steps": 1, "batch_size": FACTS.n_rows} | steps
    solver, _ = audited(Settings("wrn-10-1", **given), (3, 8, 8), FACTS)
    budget = {"epsilon": 4.0, "delta": 1e-3, "relation": relation}
    if "sampling" in steps:  # calibrating them takes seconds
        plan = replace(with_noise(solver, FACTS, relation=relation), delta=1e-3)
        plan = replace(plan, epsilon=plan.epsilon_spent())
    else:
        plan = make_plan(solver, FACTS, **budget)
    return solver, plan, worst_case(FACTS, plan)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_a_network_shows_as_much_as_it_claims_and_no_more(relation):
    solver, plan, problem = prepared(relation)
    found = auditing.attack(solver, plan, [problem], 12, confidence=SURE)
    assert found["passed"]
    assert found["mu_lower_bound"] <= found["mu"]
    # at the clip, the canary is all that a row can be (under replace_one two rows would
    # have to be opposite)
    assert (
        found["canary_mu"] == pytest.approx(found["mu"], rel=0.01)
        or relation == "replace_one"
    )
    assert found["canary_mu"] <= found["mu"] * (1 + 1e-6)


def test_random_allocation_is_audited():
    """Odds of a false alarm 2e-7."""
    solver, plan, problem = prepared(
        "add_remove", steps=4, batch_size=10, sampling="allocation"
    )
    found = auditing.attack(solver, plan, [problem], 4, confidence=SURE)
    assert found["passed"], found["laws"]["failed"]
    assert found["mu"] is None
    assert found["recomputed_epsilon"] == pytest.approx(plan.epsilon, rel=0.02)


def test_the_audited_sum_is_that_of_the_training():
    solver, _, problem = prepared()
    rows = problem.world(True)
    asked = next(solver.solve(FACTS))
    assert isinstance(asked.params, Params)
    ask = SumTask(solver.statistic, asked.params, 1e-3)
    way = way_of(solver.statistic)
    network = solver.statistic.block_sum().network
    training = TorchSums(network, chunk=16)
    own = SumTask(network.statistic, asked.params, 1e-3)
    total, wanted = np.zeros((2, solver.statistic.size), np.int64)
    for block in rows.blocks():
        used = block.index >= 0
        way.add(ask, way.rows(ask, block), block.y, used, total)
        training.add(own, block, block.y, used, wanted)
    # equal to the bit: chunks of one size, and a row is the same at every place of them
    assert_array_equal(total, wanted)
    known = len(problem.y) + 1
    assert 0 < int((total**2).sum()) <= (known * CLIP_INTEGERS) ** 2


def test_the_audited_chunk_is_chosen_as_in_the_training(monkeypatch):
    """The audit compares a row's integers between slots."""
    given = Settings("wrn-10-1", batch_size=20, steps=1), (3, 8, 8), FACTS
    assert audited(*given)[0].statistic.block_sum().chunk == 16
    monkeypatch.setattr(TorchSums, "_places_are_equal", lambda self: False)
    assert audited(*given)[0].statistic.block_sum().chunk == 1


def test_the_command_audits_a_network(tmp_path):
    # a correct method fails with odds of at most 2e-6
    sizes = "audit --sizes 20,192,2 --fits 5 --epsilon 4 --confidence 0.999999"
    network = "--network wrn-10-1 --shape 3,8,8 --clip-norm 0.001 --delta 1e-3"
    done = fitted(*f"{sizes} {network} -o {tmp_path}".split())
    assert "tests of noise and sums: 0 failed" in done.out
    assert "batch size" not in done.out
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["method"] == "network wrn-10-1"
    assert found["group_cap"] is None
    assert "needs `--shape`" in refusal(*sizes.split(), "--network", "wrn-10-1")


def test_a_network_whose_batches_have_all_rows_is_audited_with_a_warning():
    # a correct method fails with odds of at most 2e-6
    sizes = "audit --sizes 20,192,2 --fits 1 --confidence 0.999999 --delta 1e-3"
    network = "--network wrn-10-1 --shape 3,8,8 --clip-norm 0.001 --epsilon 4"
    batches = "--batch-size 19 --sampling allocation"  # one batch of an epoch
    printed = words(fitted(*f"{sizes} {network} {batches}".split()).out)
    assert "each batch has all 20 rows of --sizes" in printed
    assert "tests of noise and sums: 0 failed" in printed
