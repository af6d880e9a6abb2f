"""Probe dphead with faults, and yield the problems of each try.

`kills`, `damage` and `team` have the probes, and `benchmarks.experiments.faults` counts
the problems.
"""
