# Runs a program with another nice value, and ksoftirqd with the same, as deploy/xen/fairlane.service.conf has it; nice(1),
# renice(1) and pgrep(1) are not in dom0's image: nice.py VALUE PROGRAM [ARGUMENT...]
import posix
import sys

value = int(sys.argv[1])


def kernel_thread_of_interrupts(process):
    try:
        with open(f"/proc/{process}/comm") as name:
            return name.read().startswith("ksoftirqd/")
    except OSError:  # It ended meanwhile.
        return False


for process in filter(str.isdigit, posix.listdir("/proc")):
    if kernel_thread_of_interrupts(process):
        posix.setpriority(posix.PRIO_PROCESS, int(process), value)
posix.setpriority(posix.PRIO_PROCESS, 0, value)
posix.execv(sys.argv[2], sys.argv[2:])
