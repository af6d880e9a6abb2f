"""Plans in the flat region, simulations at constant TAN, and `dphead tan`."""

import json
import re

import numpy as np
import pytest
from commands import dphead, features_file, fit, id_of, refused, words
from finetune.core import images_file

from dphead.analysis.ledger_place import default_ledger_path
from dphead.analysis.tan import Prediction
from dphead.finetune.settings import Settings
from dphead.finetune.tan import (
    Simulated,
    decide,
    plans,
    predict_full_run,
    run_simulations,
)
from dphead.privacy import accounting
from dphead.privacy.accounting import GaussianEvent

FULL = Settings(
    "wrn-10-1", noise_multiplier=2.0, batch_size=32, steps=4, learning_rate=0.5
)


def test_each_plan_spends_the_budget_at_sigma_two_and_more_steps_cost_more():
    found = plans(50_000, epsilon=8.0, delta=1e-5, steps=[100, 1600])
    for s in found:
        events = [GaussianEvent(2.0, s.batch_size / 50_000, s.steps)]
        assert s.noise_multiplier == 2.0
        assert accounting.compose_epsilon(events, 1e-5, accountant="rdp") <= 8.0
        assert s.epsilon == pytest.approx(8.0, rel=0.01)
    work = [s.batch_size * s.steps for s in found]
    assert work == sorted(work)
    assert work[1] / work[0] == pytest.approx(4.0, rel=0.1)  # sqrt(16)
    with pytest.raises(ValueError, match="Plans by the total amount of noise"):
        plans(50_000, epsilon=8.0, delta=1e-5, steps=[250], noise_multiplier=1.0)


def test_a_budget_that_no_plan_spends_is_called_too_small_or_too_large():
    with pytest.raises(ValueError, match="too small for --steps 10 with a batch of 1"):
        plans(100, epsilon=1e-3, delta=1e-5, steps=[10])
    with pytest.raises(ValueError, match="do not use up --epsilon 8 in 2 steps"):
        plans(1000, epsilon=8.0, delta=1e-5, steps=[1, 2])


def test_simulations_run_on_public_data_only_and_predict_from_their_line():
    seen = []

    def train(settings, seed):
        seen.append((settings.batch_size, seed))
        return 0.5 + 0.01 * np.log2(settings.batch_size) + 0.001 * seed

    with pytest.raises(ValueError, match="need public data"):
        run_simulations(FULL, [2, 4], [0], train, data_is_public=False)
    with pytest.raises(
        ValueError, match="above 1 and at most the batch size 32, got 1,2"
    ):
        run_simulations(FULL, [1, 2], [0, 1], train, data_is_public=True)
    for few, said in (([2, 4], "got 2 and 2"), ([2, 2, 2], "got 3 and 1")):
        with pytest.raises(ValueError, match=said):
            run_simulations(FULL, few, [0], train, data_is_public=True)
    assert not seen
    runs = run_simulations(FULL, [2, 4, 8], [0, 1], train, data_is_public=True)
    assert seen == [(size, seed) for size in (4, 8, 16) for seed in (0, 1)]
    prediction = predict_full_run(runs, 32)
    assert prediction.accuracy == pytest.approx(0.5 + 0.05 + 0.0005)
    assert prediction.low < prediction.accuracy < prediction.high
    assert isinstance(runs[0], Simulated)
    with pytest.raises(ValueError, match="at most the batch size 32, got 2,64"):
        run_simulations(FULL, [2, 64], [0], train, data_is_public=True)


@pytest.mark.parametrize(
    "intervals, best, reason",
    [
        ({250: (0.6, 0.62)}, 250, "no other number"),
        ({250: (0.6, 0.62), 500: (0.63, 0.65)}, 500, "above all others: 63.00 to"),
        (
            {250: (0.6, 0.64), 500: (0.63, 0.65), 1000: (0.4, 0.5)},
            500,
            "not resolved, because two intervals overlap: 63.00 to 65.00 % at T = 500 "
            "and 60.00 to 64.00 % at T = 250",
        ),
    ],
)
def test_a_number_of_steps_is_recommended_only_if_its_interval_decides(
    intervals, best, reason
):
    predictions = {
        t: Prediction((low + high) / 2, low, high, 0.0)
        for t, (low, high) in intervals.items()
    }
    found, words = decide(predictions)
    assert found == best
    assert reason in words


def test_a_rising_line_is_doubted_and_decides_nothing():
    # the line of runs on digits predicted 99.2 %, and the full run measured 90.9 %
    rising = Prediction(0.99, 0.98, 1.0, slope=0.02)
    falling = Prediction(0.9, 0.89, 0.91, slope=-0.01)
    assert "far too high" in rising.doubt and falling.doubt == ""
    assert "But accuracy rises" in decide({250: falling, 500: rising})[1]
    assert decide({250: falling})[1] == "no other number of steps was simulated"


def command(*arguments):
    return dphead("tan", *arguments)


def test_show_prints_its_table():
    sizes = "--batch-size 4096 --noise-multiplier 3 --steps 2500"
    done = command(*f"show --n-rows 50000 --delta 1e-5 {sizes}".split())
    for part in ("0.9654", "7.484", "not a guarantee"):
        assert part in done.out, done.err


def test_simulate_trains_nothing_without_test_rows_or_enough_runs(tmp_path):
    path = features_file(tmp_path / "maps.h5", n=40)
    full = (
        f"simulate {path} --shape 12 --public-rows --factors 2,4 --batch-size 8 "
        "--noise-multiplier 2 --steps 1"
    ).split()
    assert "needs test images" in refused(command(*full))
    tested = (*full, "--test", path)
    assert "--dry-run is for `dphead finetune`" in refused(
        command(*tested, "--dry-run")
    )
    assert "at least 3 runs" in refused(command(*tested, "--runs", 1))


def test_simulate_warns_once_of_a_ledger_with_fits_on_the_images(tmp_path, monkeypatch):
    monkeypatch.setattr("dphead.fit.report.all_profiles", lambda *_: {})
    monkeypatch.syspath_prepend(tmp_path)
    model = "from torch import nn\ndef network(n): return nn.Linear(12, n)\n"
    (tmp_path / "tan_model.py").write_text(model)
    path = features_file(tmp_path / "maps.h5", n=40)
    test = features_file(tmp_path / "test.h5", n=40, seed=1)
    fit(path, tmp_path / "run", "--delta", 1e-3)
    done = command(
        *f"simulate {path} --test {test} --public-rows --factors 2,4 --batch-size 8 "
        "--noise-multiplier 2 --steps 1 --delta 1e-3 --model tan_model:network".split()
    )
    assert done.code == 0, done.err
    said = words(done.out)
    assert said.count("If these images are private, stop.") == 1
    assert said.index("private, stop") < said.index("seed 0")
    assert f"the ledger {default_ledger_path(id_of(path))}, which holds fits" in said


def test_simulate_trains_on_public_images_and_refuses_private_ones(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("dphead.fit.report.all_profiles", lambda *_: {})
    path = images_file(tmp_path / "images.npz", 48, test=16)
    fixed = (
        f"simulate {path} --model wrn-10-1 --classes 3 --split train --test-split test "
        "--batch-size 16 --noise-multiplier 2 --steps 1 --factors 2,4 --runs 2"
    ).split()
    assert "need public data" in refused(command(*fixed))
    out = tmp_path / "out.json"
    more = "--groups 4 --momentum 0.5 --set learning_rate_schedule=cosine --json"
    done = command(*fixed, "--public-rows", *more.split(), out)
    assert done.code == 0, done.err
    assert "--momentum 0.5" in words(done.out)
    assert "predicted at B 16" in done.out
    assert "are not private" in done.out
    assert re.search(r"95 % interval for a full run: \S+ to \S+ %", done.out)
    rises = json.loads(out.read_text())["prediction"]["slope"] > 0
    assert ("far too high" in words(done.out)) == rises
    runs = json.loads(out.read_text())["runs"]
    assert [r["batch_size"] for r in runs] == [4, 4, 8, 8]
    planned = "plan --n-rows 50000 --delta 1e-5 --epsilon 1 --simulated"
    done = command(*planned.split(), out)
    assert "Recommended: T = 1, no other number" in done.out, done.err
    assert "! The simulation of T = 1 has the noise of another budget" in done.out
    done = command(*planned.split(), out, "--simulated", out)
    assert done.code == 2 and "two files have the same number" in words(done.err)
