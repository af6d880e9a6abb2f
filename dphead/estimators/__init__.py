"""Fit private heads as scikit-learn estimators.

Never run the code of a label, such as its `__eq__`. Before the charge of a private fit,
a row's value may only stop the fit. `inputs`, `multilabel` and `fit.public_axes` list
the cases, and `fitting` refuses processes with different labels.
"""
