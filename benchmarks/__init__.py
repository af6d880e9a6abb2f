"""Measure dphead on real data, and store the results.

Do not write a number by hand that a command can measure. Each stored result has its
commit, date and machine.
"""
