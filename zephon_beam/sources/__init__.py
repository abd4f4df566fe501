"""Readers of source files, one module a format: from a part of a chunk to its documents."""
