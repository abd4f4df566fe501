"""What a data set contains: its files, and how they are cut into chunks."""
