"""Seeded defects that the tests must find: `python -m mutants`."""
