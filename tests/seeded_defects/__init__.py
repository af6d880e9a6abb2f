"""Seeded defects that the tests must find: `make mutants`.

A defect may be in any source; the copy that has it is thrown away.
"""
