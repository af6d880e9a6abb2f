"""From images to frozen features: the PyTorch side.

It imports neither dphead nor jax.
"""
