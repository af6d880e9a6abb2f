"""Rows from arrays and features files, in blocks. Knows no noise and no ledger."""
