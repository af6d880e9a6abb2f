"""Limit the total privacy loss of all fits on the same rows."""

from sklearn.datasets import load_digits

from dphead import DPAutoClassifier, DPPrototypeClassifier
from dphead.privacy.ledger import Ledger, LedgerError

X, y = load_digits(return_X_y=True)
ledger = Ledger("digits.sqlite")
ledger.set_budget(epsilon=2.0, delta=1e-5)  # before the first fit

given = {"classes": range(10), "delta": 1e-5, "ledger": ledger}
DPPrototypeClassifier(epsilon=1.0, **given).fit(X, y)
DPAutoClassifier(epsilon=1.0, **given).fit(X, y)
# two fits of epsilon = 1 spend less than 2, because Gaussian releases compose well
print(f"spent {ledger.spent(1e-5).epsilon:.3f} of 2")
try:
    DPAutoClassifier(epsilon=1.5, **given).fit(X, y)
except LedgerError as refusal:
    print(refusal)  # nothing was charged
