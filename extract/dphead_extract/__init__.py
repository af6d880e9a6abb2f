"""Turn images into frozen features: the PyTorch side.

The package may import neither dphead nor jax. No row or path may affect another row.
"""
