"""The program of the flex template: Google's launcher starts it with parameters as flags."""

import sys

from pipelines.flex_template import launch

if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
