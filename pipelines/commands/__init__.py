"""The commands of `zephon-beam`, one module each: `add_arguments(parser)`, `execute(args)`."""
