"""A fit: prepare, train, finalize."""
