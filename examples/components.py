"""Compress rows to private principal components, then train a head on these."""

from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from dphead import DPPCA, DPAutoClassifier

X, y = load_digits(return_X_y=True)
given = {"epsilon": 4.0, "ledger": "components.sqlite"}  # one ledger adds both up
model = make_pipeline(
    Normalizer(),  # learns nothing from the rows
    DPPCA(n_components=20, **given),
    DPAutoClassifier(classes=range(10), **given),
).fit(X, y)
components, head = model[1], model[-1]
print(f"{components.explained_variance_ratio_.sum():.0%} of the variance")
print(f"accuracy {model.score(X, y):.3f}")
print(f"epsilon of both fits: {head.ledger_.spent(1e-5).epsilon:.2f}")
