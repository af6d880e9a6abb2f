"""Read sources of images and embeddings."""
