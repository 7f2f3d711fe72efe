/* Has User-Mode Linux run on processors whose extended state is larger than it knows. The lab preloads this into it.
 *
 * With each switch to a process the kernel of Linux 6.1 sets that process' extended state by PTRACE_SETREGSET, in the 2,696 bytes that
 * AVX-512 and protection keys end at. The host takes the whole of its state or nothing (xstateregs_set in arch/x86/kernel/fpu/regset.c),
 * which with AMX has 11,008 bytes: the guest ended before its first program began. Here the rest is added. It is zero and is not read, as
 * the header in front (XSTATE_BV) says that those parts are in their initial state: no guest gets the permission to use them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef long call(enum __ptrace_request, pid_t, void *, void *);

/* More than any processor's state. */
static char whole[1 << 16];

long ptrace(enum __ptrace_request request, ...) {
  static call *next;
  static size_t bytes;
  va_list arguments;
  va_start(arguments, request);
  pid_t process = va_arg(arguments, pid_t);
  void *address = va_arg(arguments, void *), *data = va_arg(arguments, void *);
  va_end(arguments);

  if (!next)
    next = (call *)dlsym(RTLD_NEXT, "ptrace");
  if (request != PTRACE_SETREGSET || address != (void *)NT_X86_XSTATE)
    return next(request, process, address, data);

  if (!bytes) {
    struct iovec present = {whole, sizeof whole};
    if (next(PTRACE_GETREGSET, process, address, &present) < 0)
      return -1;
    bytes = present.iov_len;
    memset(whole, 0, bytes);
  }
  struct iovec *given = data;
  if (given->iov_len >= bytes)
    return next(request, process, address, data);
  memcpy(whole, given->iov_base, given->iov_len);
  struct iovec all = {whole, bytes};
  return next(request, process, address, &all);
}
