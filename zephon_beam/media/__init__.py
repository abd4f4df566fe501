"""Images and videos in documents: the arithmetic, without any library that decodes them."""
