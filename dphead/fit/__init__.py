"""Fit from files to files: charge, fit loop, resume, report.

Nothing here may decide the noise, or write a sum without noise.
"""
