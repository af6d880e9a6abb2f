"""One experiment a file: what is asked, its parameters as constants, `run` for what is
missing of its rows, `write` for what is rendered from them.
"""
