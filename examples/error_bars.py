"""Compare weights and scores with their standard errors due to the privacy noise."""

import numpy as np
from sklearn.datasets import load_digits

from dphead import DPLeastSquaresClassifier

X, y = load_digits(return_X_y=True)
head = DPLeastSquaresClassifier(epsilon=3.0, classes=range(10), error_bars=True)
head.fit(X, y)

signal = np.abs(head.coef_) > 2 * head.coef_std_
print(f"{signal.mean():.0%} of the weights exceed two standard errors")
scores, errors = head.decision_function(X[:5]), head.decision_std(X[:5])
for row, error in zip(scores, errors, strict=True):
    best = row.argmax()
    print(f"class {best}: score {row[best]:.2f} ± {error[best]:.2f}")
