"""Fit heads from files to files: charge, run, resume and report.

Code here must not choose the noise or write a sum without noise.
"""
