"""Fit private heads as scikit-learn estimators.

No label's code may run, and no row's value may affect anything before the charge.
"""
