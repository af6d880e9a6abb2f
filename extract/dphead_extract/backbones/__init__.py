"""Define the backbones: frozen networks that compute features."""
