"""Fit heads from features files to run folders: charge, run, resume and report.

Code here must not choose the noise or write a sum without noise.
"""
