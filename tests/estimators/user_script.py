"""A user's script, which type checkers read and nobody runs."""

from pathlib import Path

import numpy as np

from dphead import (
    DPPCA,
    DPAutoClassifier,
    DPFinetuneClassifier,
    DPHeadClassifier,
    DPLeastSquaresClassifier,
    DPMultiLabelClassifier,
    DPRegressor,
)

X, y = np.zeros((60, 6)), np.zeros(60, int)
head: DPAutoClassifier = DPAutoClassifier(epsilon=1.0, classes=[0, 1]).fit(X, y)
coefficients: np.ndarray = head.coef_
epsilon: float = head.privacy_.epsilon
spent: float = head.ledger_.spent(1e-5).epsilon
expected = head.expected_accuracy_
if expected is not None:
    print(expected.accuracy, head.score(X, y), head.predict(Path("f.h5")))
head.save("run")
loaded: DPHeadClassifier = DPHeadClassifier.load("run")
ls = DPLeastSquaresClassifier(ridge="stein", error_bars=True).fit(X, y)
errors: np.ndarray = ls.coef_std_ + ls.decision_std(X)
sets: DPMultiLabelClassifier = DPMultiLabelClassifier(settings={"steps": 3}).fit(X, X)
components: np.ndarray = DPPCA(n_components=2).fit(X).components_
intercept: float = DPRegressor(bounds=(0.0, 1.0)).fit(X, y).intercept_
network: DPFinetuneClassifier = DPFinetuneClassifier(classes=[0, 1]).fit(X, y)
