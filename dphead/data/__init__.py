"""Read rows from arrays and features files, in blocks.

Nothing here may know noise or a ledger, or take a shape from a private value.
"""
