"""Experiments: run records, tables of them (the paper's and one's own), and documents with such tables."""
