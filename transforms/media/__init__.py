"""Images and videos as Pillow and PyAV see them; nothing here is imported without media."""
