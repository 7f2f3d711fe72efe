/* Counts the instructions that an emulated machine executes, by the code they belong to. A plugin of QEMU's TCG.
 *
 *   qemu-system-x86_64 -accel tcg -plugin path-length.so,out=FILE ...
 *
 * The emulator translates code in blocks. Each block, identified by virtual address and machine page, has counters. The plugin
 * interface of QEMU 7.2 cannot read registers, so the domain of a block is derived from these two. The hypervisor has its own virtual
 * addresses. Code of two domains' kernels at the same virtual address is on different machine pages. A kernel is contiguous in
 * memory, so the difference of its text's machine pages and virtual pages is one number, which identifies the kernel. Other code,
 * of programs and modules, runs under the kernel whose text the CPU executed last. The hypervisor may switch domains in between, so
 * the kernel found most often counts. The kernel of a guest that a CPU enters by VMRUN (AMD64 Architecture Programmer's Manual,
 * volume 2, 15.5) may be scattered over memory; but all that the CPU executes after VMRUN is the guest's, until it is back at the
 * instruction after VMRUN.
 *
 * A mark is an instruction that moves the eight bytes "FAIRLANE" into a register. When one is executed, all counts so far are
 * written to FILE.1, FILE.2 and so on; the counts between two marks are their difference. A file has a line
 *   clock CPUS INSTRUCTIONS
 * and then a line for each block that was executed:
 *   ADDRESS PAGE KERNEL then for each CPU: EXECUTED CHARGED
 * ADDRESS is the virtual address in hexadecimal. PAGE is the machine page's number, relative to an arbitrary one. KERNEL is the number
 * of the kernel that the block belongs to or runs under, modulo 2^64; 0 if unknown, and 1 for a guest entered by VMRUN. EXECUTED is the
 * number of the block's own instructions. An instruction with a repeat prefix (`rep movsb`) counts once, as on real CPUs; the
 * emulator's clock, and so everything about time, counts each repetition.
 *
 * CHARGED is what a hypervisor would account: the instructions of all CPUs while this CPU belonged to the domain that was entered
 * at this block, from the hypervisor; for a block of the hypervisor that halts, while the CPU was idle. With a clock of one nanosecond
 * per instruction these are nanoseconds. Between leaving one domain and entering another, the hypervisor at some point accounts the
 * CPU to the other one. The plugin cannot see that point, so each domain is charged with half of that time.
 *
 * Without -icount each CPU is a thread of the emulator and counts for itself. Other CPUs continue during a mark, and part of what they
 * execute then is counted before it. CHARGED is meaningless then, as time is not counted in instructions.
 *
 * Debian ships no qemu-plugin.h, so the used part of version 1 of the interface is declared here. */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
  const char *target_name;
  struct {
    int min, cur;
  } version;
  bool system_emulation;
  struct {
    int smp_vcpus, max_vcpus;
  } system;
} qemu_info_t;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
typedef void (*translated_t)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*executed_t)(unsigned, void *);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, translated_t);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, executed_t, enum qemu_plugin_cb_flags, void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, executed_t, enum qemu_plugin_cb_flags, void *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *);

enum { MOST_CPUS = 8, BUCKETS = 1 << 18, PAGE_BITS = 12 };
enum { GUEST_BY_VMRUN = 1 }; /* no kernel has this number: theirs is a physical page's minus a far higher virtual page's */

/* Code translated at one address of one page. */
struct block {
  uint64_t address, page, length;
  uint64_t repeated; /* the address of its last instruction, if that repeats; each further repetition is a block of its own */
  uintptr_t start;  /* the host address of its first instruction */
  uintptr_t resume; /* the host address after its last instruction, if that enters a guest */
  bool hypervisor, text, halts;
  uint64_t kernel, votes; /* the kernel it runs under, by majority vote (Boyer and Moore) */
  uint64_t executed[MOST_CPUS], charged[MOST_CPUS];
  struct block *next; /* in its bucket */
};

/* The current owner of a CPU. */
struct owner {
  uint64_t clock; /* instructions that the CPU has executed, including each repetition */
  struct block *entered;
  uint64_t since;
  uint64_t left; /* when the hypervisor was entered from a domain or woke up */
  uint64_t repeating; /* `repeated` of the last block */
  uint64_t kernel; /* the kernel whose text was executed last */
  uintptr_t resume; /* while a guest entered by VMRUN runs: the host address after VMRUN */
  bool in_hypervisor, halted;
};

static struct block *buckets[BUCKETS];
static pthread_mutex_t translating = PTHREAD_MUTEX_INITIALIZER; /* guards the buckets */
static struct owner owners[MOST_CPUS];
static int cpus, marks;
static const char *out = "path-length";

/* Instructions of all CPUs so far. */
static uint64_t clock_now(void) {
  uint64_t sum = 0;
  for (int cpu = 0; cpu < cpus; cpu++) sum += owners[cpu].clock;
  return sum;
}

/* Charges the CPU's time since its last change of owner, and makes the domain entered at a block its owner. */
static void hand_over(unsigned cpu, struct block *to, uint64_t when) {
  struct owner *owner = &owners[cpu];
  if (owner->entered) owner->entered->charged[cpu] += when - owner->since;
  owner->entered = to;
  owner->since = when;
}

/* Votes for the kernel that a block outside of kernel text runs under. */
static void vote(struct block *block, uint64_t kernel) {
  if (!block->votes) block->kernel = kernel;
  if (block->kernel == kernel) block->votes++;
  else block->votes--;
}

static void executed(unsigned cpu, void *data) {
  struct block *block = data;
  struct owner *owner = &owners[cpu];
  if (block->hypervisor && (!owner->in_hypervisor || owner->halted)) owner->left = clock_now();
  if (block->halts || (owner->in_hypervisor && !block->hypervisor)) {
    uint64_t now = clock_now();
    uint64_t left = owner->left > owner->since ? owner->left : owner->since; /* a mark may have come between */
    if (!owner->entered) left = now; /* the hypervisor's own start belongs to no domain */
    hand_over(cpu, block, left + (now - left) / 2);
  }
  if (owner->resume == block->start) owner->resume = 0;
  if (owner->resume) block->kernel = GUEST_BY_VMRUN;
  else if (block->text) owner->kernel = block->kernel;
  else if (!block->hypervisor) vote(block, owner->kernel);
  owner->in_hypervisor = block->hypervisor;
  owner->halted = block->halts;
  bool again = block->repeated == block->address && owner->repeating == block->address;
  if (!again) block->executed[cpu] += block->length;
  owner->repeating = block->repeated;
  owner->clock += block->length;
  if (block->resume) owner->resume = block->resume;
}

static void write_counts(FILE *file) {
  fprintf(file, "clock %d %" PRIu64 "\n", cpus, clock_now());
  for (int i = 0; i < BUCKETS; i++)
    for (struct block *block = buckets[i]; block; block = block->next) {
      uint64_t all = 0;
      for (int cpu = 0; cpu < cpus; cpu++) all += block->executed[cpu] + block->charged[cpu];
      if (!all) continue;
      fprintf(file, "%" PRIx64 " %" PRIu64 " %" PRIu64, block->address, block->page, block->kernel);
      for (int cpu = 0; cpu < cpus; cpu++)
        fprintf(file, " %" PRIu64 " %" PRIu64, block->executed[cpu], block->charged[cpu]);
      fputc('\n', file);
    }
}

static void marked(unsigned at, void *unused) {
  char name[4096], whole[4096];
  (void)at, (void)unused;
  uint64_t now = clock_now();
  for (int cpu = 0; cpu < cpus; cpu++) hand_over(cpu, owners[cpu].entered, now);
  marks++;
  /* Renamed when complete, so that a reader never sees part of it. */
  snprintf(name, sizeof name, "%s.part", out);
  snprintf(whole, sizeof whole, "%s.%d", out, marks);
  FILE *file = fopen(name, "w");
  pthread_mutex_lock(&translating);
  if (file) write_counts(file);
  pthread_mutex_unlock(&translating);
  if (!file || ferror(file) | fclose(file) || rename(name, whole)) perror(whole);
}

static bool is_mark(const struct qemu_plugin_insn *insn) {
  const char *bytes = qemu_plugin_insn_data(insn);
  return qemu_plugin_insn_size(insn) == 10 && !memcmp(bytes + 2, "FAIRLANE", 8);
}

static bool is_halt(const struct qemu_plugin_insn *insn) {
  const uint8_t *bytes = qemu_plugin_insn_data(insn);
  return qemu_plugin_insn_size(insn) == 1 && bytes[0] == 0xf4;
}

static bool is_vmrun(const struct qemu_plugin_insn *insn) {
  return qemu_plugin_insn_size(insn) == 3 && !memcmp(qemu_plugin_insn_data(insn), "\x0f\x01\xd8", 3);
}

/* A string instruction (MOVS, CMPS, STOS, LODS, SCAS, INS, OUTS) with a REP prefix and possibly others. */
static bool is_repeated(const struct qemu_plugin_insn *insn) {
  const uint8_t *byte = qemu_plugin_insn_data(insn), *end = byte + qemu_plugin_insn_size(insn);
  bool rep = false;
  for (; byte < end; byte++) {
    if (*byte == 0xf2 || *byte == 0xf3) rep = true;
    else if (*byte != 0x66 && *byte != 0x67 && (*byte & 0xf0) != 0x40) break;
  }
  return rep && end - byte == 1 &&
         ((*byte >= 0xa4 && *byte <= 0xa7) || (*byte >= 0xaa && *byte <= 0xaf) || (*byte >= 0x6c && *byte <= 0x6f));
}

/* Finds the block, or creates it. The emulator discards its translations now and then and translates again. */
static struct block *find_block(uint64_t address, uint64_t page, uint64_t length) {
  uint64_t hash = (address ^ page << 20 ^ length) * 0x9e3779b97f4a7c15ull;
  struct block **bucket = &buckets[hash >> 46];
  for (struct block *block = *bucket; block; block = block->next)
    if (block->address == address && block->page == page && block->length == length) return block;
  struct block *block = calloc(1, sizeof *block);
  if (!block) abort();
  block->address = address, block->page = page, block->length = length;
  block->hypervisor = address >= 0xffff800000000000ull && address < 0xffff880000000000ull; /* Xen: asm-x86/config.h */
  /* Linux: Documentation/arch/x86/x86_64/mm.rst; modules start after it. */
  block->text = address >= 0xffffffff80000000ull && address < 0xffffffffa0000000ull;
  if (block->text) block->kernel = page - (address >> PAGE_BITS);
  block->next = *bucket;
  return *bucket = block;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  size_t length = qemu_plugin_tb_n_insns(tb);
  const struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, length - 1);
  uintptr_t start = (uintptr_t)qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(tb, 0));
  (void)id;
  pthread_mutex_lock(&translating);
  struct block *block = find_block(qemu_plugin_tb_vaddr(tb), start >> PAGE_BITS, length);
  block->start = start;
  block->resume = is_vmrun(last) ? (uintptr_t)qemu_plugin_insn_haddr(last) + qemu_plugin_insn_size(last) : 0;
  block->halts = block->hypervisor && is_halt(last);
  block->repeated = is_repeated(last) ? qemu_plugin_insn_vaddr(last) : 0;
  pthread_mutex_unlock(&translating);
  qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, QEMU_PLUGIN_CB_NO_REGS, block);
  for (size_t i = 0; i < length; i++) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
    if (is_mark(insn)) qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, QEMU_PLUGIN_CB_NO_REGS, NULL);
  }
}

EXPORT int qemu_plugin_version = 1;

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
  cpus = info->system.smp_vcpus;
  if (!info->system_emulation || cpus > MOST_CPUS) {
    fprintf(stderr, "path-length: system emulation with at most %d CPUs is needed\n", MOST_CPUS);
    return 1;
  }
  for (int i = 0; i < argc; i++)
    if (!strncmp(argv[i], "out=", 4)) out = strdup(argv[i] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  return 0;
}
