# The CPU time of each domain in nanoseconds, by the hypervisor's own account: a line with the domain's number and the time.
import sys

sys.path.append("/usr/lib/xen-4.17/lib/python")
from xen.lowlevel.xc import xc

for domain in xc().domain_getinfo():
    print(domain["domid"], domain["cpu_time"])
