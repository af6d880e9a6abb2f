"""Plan the releases of a fit, with their noise, from a method and a budget.

This package must not read data, because a plan depends on public numbers only.
"""
