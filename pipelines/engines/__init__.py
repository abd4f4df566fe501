"""Engines on this machine: what they need, and a Flink cluster and job servers for tests."""
