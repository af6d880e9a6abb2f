"""Measure dphead on real data, and store the results.

No number may be written by hand that a command could have measured, and a stored row
has its commit, date and machine.
"""
