"""Train a head on jax arrays, and use it under jit."""

import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

import dphead.jax as dpx

pixels, labels = load_digits(return_X_y=True)
features = jnp.asarray(pixels, jnp.float32)
head = dpx.fit(features, labels, n_classes=10, method="dp-fc", epsilon=2.0, delta=1e-5)
classes = jax.jit(dpx.predict)(head, features)
right = (classes == labels).mean()
print(f"accuracy {right:.2f} at epsilon {head.privacy.epsilon:.3f}")
