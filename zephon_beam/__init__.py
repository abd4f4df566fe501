"""The pure core of zephon-beam and its trainer-side reader; nothing here imports Apache Beam."""
