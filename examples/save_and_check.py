"""Save a head with its report and privacy card, check the folder, and load the head."""

from sklearn.datasets import load_digits

from dphead import DPAutoClassifier, DPHeadClassifier
from dphead.analysis.check import check
from dphead.analysis.records import read_run

X, y = load_digits(return_X_y=True)
head = DPAutoClassifier(epsilon=1.0, classes=range(10), ledger="digits.sqlite")
head.fit(X, y).save("run")

run = read_run("run")  # refuses damaged files
print(run.report["statement"])
for finding in check(run):
    print(f"- {finding.what}")
loaded = DPHeadClassifier.load("run")
print((loaded.predict(X) == head.predict(X)).all())
