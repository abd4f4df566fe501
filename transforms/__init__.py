"""Beam PTransforms of zephon-beam: they carry elements to the pure core and keep its state."""
