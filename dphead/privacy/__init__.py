"""The audited folder: all that touches private rows, adds noise or decides a charge.

It may import nothing else of the project. READING.md says where to begin.
"""
