"""Read rows from arrays and features files, in blocks.

This package does not access noise or the ledger. Shapes must not depend on private
values, apart from the number of rows (`blocks.rows_of_block`).
"""
