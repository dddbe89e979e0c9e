"""`python -P -m hpo.cli`: how `hpo up` starts its parts, whatever the PATH of its shell is."""

from hpo.cli import main

main()
