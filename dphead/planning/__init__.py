"""From a method and a budget to the releases of a fit, with their noise.

Nothing here may read data: a plan is a function of public numbers.
"""
