"""Transforms that a recipe calls by one word, one a module."""
