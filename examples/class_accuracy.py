"""Release the expected accuracy of each class, for classes of unequal size."""

import numpy as np
from sklearn.datasets import load_digits

from dphead import DPAutoClassifier

X, y = load_digits(return_X_y=True)
rare = (y == 8) & (np.arange(len(y)) % 4 > 0)  # keep a quarter of the eights
X, y = X[~rare], y[~rare]

for balanced in (False, True):
    head = DPAutoClassifier(
        epsilon=3.0, classes=range(10), per_class_share=0.1, balanced=balanced
    ).fit(X, y)
    released = head.head_.class_accuracy
    print(f"balanced={balanced}:")
    for name, one in zip(head.classes_, released.each, strict=True):
        print(f"  {name}: {one.accuracy:.2f} ({one.low:.2f} to {one.high:.2f})")
