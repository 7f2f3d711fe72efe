/* Preloaded into a program that serves rings by DPDK's vhost library, under callgrind: lets it see full bursts only, and counts the
 * instructions for a fixed number of frames.
 *
 * Before the program takes or delivers a burst, this waits, uncounted, until the ring holds a whole one or has room for it. So the
 * program never polls in vain, whatever else the machine does, and its instructions a frame are the same in each run. Collection,
 * which must be off at the start, begins after some frames, and is dumped after as many more, twice. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

/* Of rte_vhost.h. */
struct rte_mempool;
struct rte_mbuf;
typedef uint16_t take(int vid, uint16_t queue, struct rte_mempool *pool, struct rte_mbuf **frames, uint16_t count);
typedef uint16_t deliver(int vid, uint16_t queue, struct rte_mbuf **frames, uint16_t count);
typedef uint32_t waiting(int vid, uint16_t queue);
typedef uint16_t room(int vid, uint16_t queue);

static take *real_take;
static deliver *real_deliver;
static waiting *frames_waiting;
static room *buffers_free;

static int collecting;
static long taken, segment, dumps;

static void *find(void *library, const char *name)
{
	void *found = library ? dlsym(library, name) : NULL;

	if (!found) {
		fprintf(stderr, "full bursts: librte_vhost has no %s\n", name);
		_exit(3);
	}
	return found;
}

/* The library may have been loaded by a plugin, which the usual search does not see. */
static void find_all(void)
{
	void *library = dlopen(getenv("FULL_BURSTS_OF"), RTLD_NOLOAD | RTLD_LAZY);

	real_deliver = (deliver *)find(library, "rte_vhost_enqueue_burst");
	frames_waiting = (waiting *)find(library, "rte_vhost_rx_queue_count");
	buffers_free = (room *)find(library, "rte_vhost_avail_entries");
	segment = atol(getenv("FULL_BURSTS_FRAMES"));
	real_take = (take *)find(library, "rte_vhost_dequeue_burst");
}

/* What is between two calls of this function is not counted. */
static void toggle(void)
{
	if (collecting)
		CALLGRIND_TOGGLE_COLLECT;
}

uint16_t rte_vhost_dequeue_burst(int vid, uint16_t queue, struct rte_mempool *pool, struct rte_mbuf **frames, uint16_t count)
{
	uint16_t burst;

	toggle();
	if (!real_take)
		find_all();
	while (frames_waiting(vid, queue) < count)
		usleep(20);
	toggle();
	burst = real_take(vid, queue, pool, frames, count);
	taken += burst;
	if (taken < segment)
		return burst;
	toggle();
	taken -= segment;
	if (collecting) {
		CALLGRIND_DUMP_STATS;
		if (++dumps == 2)
			_exit(0);
	}
	collecting = 1;
	toggle();
	return burst;
}

uint16_t rte_vhost_enqueue_burst(int vid, uint16_t queue, struct rte_mbuf **frames, uint16_t count)
{
	toggle();
	if (!real_take)
		find_all();
	while (buffers_free(vid, queue) < count)
		usleep(20);
	toggle();
	return real_deliver(vid, queue, frames, count);
}
