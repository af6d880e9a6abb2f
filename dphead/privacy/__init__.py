"""The audited folder: everything that touches private rows, adds noise, or decides what
was charged. See READING.md.
"""
