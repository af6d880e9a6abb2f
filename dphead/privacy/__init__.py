"""Contain all code that releases private values, adds noise or decides a charge.

This is the audited folder. It may import nothing else of the project. READING.md says
where to begin.
"""
