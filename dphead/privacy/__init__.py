"""Contain all code that releases private values, adds noise or decides a charge.

This is the audited folder. It imports no other part of the project. Start with
READING.md.
"""
