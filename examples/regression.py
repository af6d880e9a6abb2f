"""Predict a number with a public range by a private ridge regression."""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import Normalizer

from dphead import DPRegressor

X, digit = load_digits(return_X_y=True)
X = Normalizer().fit_transform(X)  # rows of norm 1
X, X_new, y, y_new = train_test_split(X, digit, random_state=0)

for epsilon in (1.0, 8.0, float("inf")):
    model = DPRegressor(epsilon=epsilon, bounds=(0.0, 9.0)).fit(X, y)
    print(f"epsilon {epsilon}: R² {model.score(X_new, y_new):.2f}")
