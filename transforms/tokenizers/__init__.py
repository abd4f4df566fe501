"""Tokenizer backends: what encodes a recipe's documents, and the proof that it may."""
