"""One experiment a file: what is asked, its parameters as constants, `run` for what is
missing of its rows, `table` of what is stored. `readme` is the page of the rows in
results/, where they have one, and `write` writes it and draws its pictures.
"""
