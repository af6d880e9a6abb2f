"""From images to frozen features: the PyTorch side.

It may import neither dphead nor jax, and no row or path may move another row.
"""
