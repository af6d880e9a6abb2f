"""Hold one experiment per file.

A file has the question, its parameters as constants, `run`, which measures missing
results, and `table`, which renders the stored results. If the experiment has a page in
results/, `readme` returns its text.
"""
