"""Analyze runs: accountants of papers, trade-offs, TAN, audits, checks.

Nothing here decides a charge, and nothing here may charge a ledger.
"""
