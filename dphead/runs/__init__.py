"""A fit from files to files: charge, loop, resume, report.

Nothing here may decide noise, or write a sum that has none.
"""
