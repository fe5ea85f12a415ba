"""`python -m millstream_runner`: the command line, for use if the script is not on the PATH."""

import sys

from millstream_runner.entry import main

if __name__ == "__main__":
    sys.exit(main())
