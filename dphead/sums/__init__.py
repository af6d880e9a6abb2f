"""How sums of integers are made fast. No noise, no ledger, no epsilon here."""
