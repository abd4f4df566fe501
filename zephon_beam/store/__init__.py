"""Where a stream lives: named immutable objects, created at most once, in a folder or bucket."""
