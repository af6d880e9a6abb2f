"""Fit private heads as scikit-learn estimators.

No label's code may run. In a private fit, no row's value may affect anything before the
charge. `inputs` and `fit.public_axes` have the exceptions, which stop a fit.
"""
