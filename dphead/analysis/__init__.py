"""Analyze runs: accountants of papers, trade-offs, TAN, audits and checks.

Code here must not compute charges or charge a ledger.
"""
