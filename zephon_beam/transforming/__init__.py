"""What a recipe does to documents between reading and tokenizing."""
