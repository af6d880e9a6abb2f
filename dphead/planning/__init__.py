"""From a method and a budget to the releases of a fit, with their noise.

Reads no data.
"""
