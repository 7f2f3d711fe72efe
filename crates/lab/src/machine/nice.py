# Runs a program with another nice value, as nice(1) does, which is not in dom0's image: nice.py VALUE PROGRAM [ARGUMENT...]
import posix
import sys

posix.setpriority(posix.PRIO_PROCESS, 0, int(sys.argv[1]))
posix.execv(sys.argv[2], sys.argv[2:])
