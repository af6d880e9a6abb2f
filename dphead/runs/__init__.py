"""A fit from files to files: charge, loop, resume, report.

Decides no noise of its own.
"""
