"""How sums are added fast: integers, which give the same numbers in any order.

They have no noise: of private rows none may be stored, or leave but to `release`.
"""
