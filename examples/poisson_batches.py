"""Train by DP-SGD on Poisson batches, with a private number of rows."""

from sklearn.datasets import load_digits

from dphead import DPSGDClassifier

X, y = load_digits(return_X_y=True)
head = DPSGDClassifier(
    epsilon=3.0,
    delta=1e-5,
    classes=range(10),
    relation="add_remove",
    nominal_n=1800,  # public; the number of rows stays private
    sampling_prob=0.25,
    steps=80,
    learning_rate=4.0,
)
head.fit(X, y)
print(f"accuracy {head.score(X, y):.3f} with {head.privacy_.n_rows} nominal rows")
for accountant in ("pld", "rdp"):
    print(accountant, head.privacy_.profiles[accountant])
