"""Plan the releases of a fit, with their noise, from a method and a budget.

Nothing here may read data: a plan is a function of public numbers.
"""
