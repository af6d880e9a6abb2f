"""What never decides a charge: profiles of the papers, trade-off curves, privacy
amplification by iteration, TAN.
"""
