# Prints the CPU time of each domain in nanoseconds, as the hypervisor accounts it: one line with domain id and time each.
import sys

sys.path.append("/usr/lib/xen-4.17/lib/python")
from xen.lowlevel.xc import xc

for domain in xc().domain_getinfo():
    print(domain["domid"], domain["cpu_time"])
