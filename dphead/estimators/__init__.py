"""Fit private heads as scikit-learn estimators.

No label's code may run. Before the charge of a private fit, a row's value may only stop
the fit. `inputs`, `multilabel` and `fit.public_axes` have the cases, and `fitting`
refuses processes with different labels.
"""
