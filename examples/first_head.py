"""Train a private head and print its expected and its measured accuracy."""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dphead import DPAutoClassifier

X, y = load_digits(return_X_y=True)
X, X_new, y, y_new = train_test_split(X, y, random_state=0)
head = DPAutoClassifier(epsilon=1.0, delta=1e-5, classes=range(10)).fit(X, y)
print(head.score(X_new, y_new), head.expected_accuracy_.accuracy)
print(head.privacy_.epsilon, head.privacy_.protected_unit)
