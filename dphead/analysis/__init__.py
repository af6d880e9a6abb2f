"""What never decides a charge: papers' accountants, trade-offs, TAN, audits, checks.

Nothing here may charge a ledger.
"""
