"""Packers: how pieces become fixed-length rows, one method a module."""
