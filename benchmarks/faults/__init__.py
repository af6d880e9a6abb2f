"""Probes of what dphead must withstand, which yield the problems of each try.

`kills`, `damage` and `team` have the probes, and `benchmarks.experiments.faults` counts
the problems.
"""
