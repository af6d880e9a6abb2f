"""Sum integers with compiled loops."""
