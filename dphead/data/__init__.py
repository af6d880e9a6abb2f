"""Read rows from arrays and features files, in blocks.

Code here knows no noise and no ledger. Shapes must not depend on private values.
"""
