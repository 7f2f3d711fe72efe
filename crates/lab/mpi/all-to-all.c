/* The all-to-all exchange of a parallel computation, timed as Alltoall of the Intel MPI Benchmarks: for each size one exchange to
 * establish the connections, a barrier, then iterations back to back.
 *
 *   all-to-all ITERATIONS BYTES...
 *
 * Rank 0 prints one line per size: the bytes from each rank to each other one, then the seconds of each iteration, averaged over all
 * ranks (the benchmarks' t_avg). An error ends all ranks, as MPI's errors are fatal by default. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Allocates memory and writes to it, so that the first iteration has no page faults. */
static void *memory(size_t bytes) {
  void *place = malloc(bytes + 1);
  if (!place) {
    fprintf(stderr, "all-to-all: no memory for %zu bytes\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  return memset(place, 1, bytes + 1);
}

static void exchange(int bytes, int iterations, int rank, int ranks) {
  void *sent = memory((size_t)bytes * ranks), *received = memory((size_t)bytes * ranks);
  double *own = memory(iterations * sizeof *own), *sum = memory(iterations * sizeof *sum);
  MPI_Alltoall(sent, bytes, MPI_BYTE, received, bytes, MPI_BYTE, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < iterations; i++) {
    double start = MPI_Wtime();
    MPI_Alltoall(sent, bytes, MPI_BYTE, received, bytes, MPI_BYTE, MPI_COMM_WORLD);
    own[i] = MPI_Wtime() - start;
  }
  MPI_Reduce(own, sum, iterations, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("%d", bytes);
    for (int i = 0; i < iterations; i++)
      printf(" %.9f", sum[i] / ranks);
    printf("\n");
    fflush(stdout);
  }
  free(sent);
  free(received);
  free(own);
  free(sum);
}

int main(int count, char **words) {
  int rank, ranks;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 2; i < count; i++)
    exchange(atoi(words[i]), atoi(words[1]), rank, ranks);
  MPI_Finalize();
  return 0;
}
