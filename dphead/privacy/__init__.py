"""The audited folder: all that lets out what private rows say, adds noise to it, or
decides a charge.

It may import nothing else of the project. READING.md says where to begin.
"""
