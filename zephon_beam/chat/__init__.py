"""Conversations without Jinja and without a tokenizer: their form, their files, their masks."""
