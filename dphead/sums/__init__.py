"""How sums are added fast: integers, which give the same numbers in any order."""
