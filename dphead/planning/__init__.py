"""Plan the releases of a fit, with their noise, from a method and a budget.

Code here must not read data: a plan depends on public numbers only.
"""
