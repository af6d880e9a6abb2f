"""Turn images into frozen features: the PyTorch side.

It may import neither dphead nor jax. No row or path may change another row.
"""
