"""Evidence: commands that run dphead on real data and store what they measured.

No number may be written by hand that a command could have measured, and a stored row
has its commit, date and machine.
"""
