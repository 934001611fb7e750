// Times one collective of an MPI as `ironrail perf` times ours: iterations back to back, out of place; the mean of all ranks. A line per
// size: `bytes microseconds`, and WRONG where an element is not what it should be.
//
//     collectives NAME CPUS ITERATIONS SIZES...
//
// CPUS is a list as 0,1: rank r runs on the r-th, and round again; `any` leaves it to the system. A size is nccl-tests': of all_gather
// and gather that of the whole output, of reduce_scatter, scatter and alltoall that of the whole input; of a round of halos in a ring
// that of one border. A round is two MPI_Sendrecv, or one MPI_Neighbor_alltoall, or, where a rank does not know how long its neighbours' borders
// are, two MPI_Isend and for each border MPI_Probe and MPI_Recv. The data depends on rank and index, and outputs are poisoned before the one call that is checked.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
static MPI_Comm ring;

static int is_halo(const char *name) { return !strncmp(name, "halo_", 5); }

// Receives a border of any length up to `most`. The memory is there already, which a caller of unknown lengths would have to allocate.
// OpenMPI's MPI_Mrecv fails over libfabric's provider tcp.
static void receive_any(float *out, int most, int from, int tag) {
  MPI_Status status;
  int count;
  MPI_Probe(from, tag, MPI_COMM_WORLD, &status);
  MPI_Get_count(&status, MPI_FLOAT, &count);
  if (count < 0 || count > most) MPI_Abort(MPI_COMM_WORLD, 2);
  MPI_Recv(out, count, MPI_FLOAT, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// Two borders out, left and right, and two in.
static void halo(const char *how, float *in, float *out, int count) {
  int left = (rank + size - 1) % size, right = (rank + 1) % size;
  if (!strcmp(how, "halo_neighbor")) {
    MPI_Neighbor_alltoall(in, count, MPI_FLOAT, out, count, MPI_FLOAT, ring);
    return;
  }
  if (!strcmp(how, "halo_probe")) {
    MPI_Request sends[2];
    MPI_Isend(in, count, MPI_FLOAT, left, 1, MPI_COMM_WORLD, &sends[0]);
    MPI_Isend(in + count, count, MPI_FLOAT, right, 2, MPI_COMM_WORLD, &sends[1]);
    receive_any(out + count, count, right, 1);
    receive_any(out, count, left, 2);
    MPI_Waitall(2, sends, MPI_STATUSES_IGNORE);
    return;
  }
  MPI_Sendrecv(in, count, MPI_FLOAT, left, 1, out + count, count, MPI_FLOAT, right, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Sendrecv(in + count, count, MPI_FLOAT, right, 2, out, count, MPI_FLOAT, left, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static float value(int of, int index) { return (float)((of * 7 + index) % 13); }

// The launchers' variables say the rank before MPI starts threads of its own.
static void settle(const char *cpus) {
  const char *names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, *text = NULL;
  for (int i = 0; i < 2 && !text; i++) text = getenv(names[i]);
  if (!text || !strcmp(cpus, "any")) return;
  int own = atoi(text), count = 1;
  for (const char *at = cpus; (at = strchr(at, ',')); at++) count++;
  for (own %= count; own; own--) cpus = strchr(cpus, ',') + 1;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(atoi(cpus), &set);
  if (sched_setaffinity(0, sizeof set, &set)) perror("sched_setaffinity"), exit(2);
}

static void once(const char *name, float *in, float *out, int count) {
  int each = count / size;
  if (!strcmp(name, "all_reduce")) MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(name, "reduce")) MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
  else if (!strcmp(name, "broadcast")) MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else if (!strcmp(name, "all_gather")) MPI_Allgather(in, each, MPI_FLOAT, out, each, MPI_FLOAT, MPI_COMM_WORLD);
  else if (!strcmp(name, "gather")) MPI_Gather(in, each, MPI_FLOAT, out, each, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else if (!strcmp(name, "scatter")) MPI_Scatter(in, each, MPI_FLOAT, out, each, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else if (!strcmp(name, "reduce_scatter")) MPI_Reduce_scatter_block(in, out, each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(name, "alltoall")) MPI_Alltoall(in, each, MPI_FLOAT, out, each, MPI_FLOAT, MPI_COMM_WORLD);
  else if (!strcmp(name, "barrier")) MPI_Barrier(MPI_COMM_WORLD);
  else if (is_halo(name)) halo(name, in, out, count / 2);
  else fprintf(stderr, "there is no %s\n", name), MPI_Abort(MPI_COMM_WORLD, 2);
}

// How many elements of the output belong to this rank.
static int filled(const char *name, int count) {
  int each = count / size;
  if (!strcmp(name, "barrier")) return 0;
  if (is_halo(name)) return count;
  if (!strcmp(name, "reduce")) return rank ? 0 : count;
  if (!strcmp(name, "gather")) return rank ? 0 : each * size;
  if (!strcmp(name, "scatter") || !strcmp(name, "reduce_scatter")) return each;
  return !strcmp(name, "all_reduce") || !strcmp(name, "broadcast") ? count : each * size;
}

static float expected(const char *name, int index, int count) {
  int each = count / size;
  if (!strcmp(name, "broadcast")) return value(0, index);
  // Which of two equal neighbours a border came from, MPI's versions do not agree on: a rank's two borders are the same.
  if (is_halo(name)) return value(index < count / 2 ? (rank + size - 1) % size : (rank + 1) % size, index % (count / 2));
  if (!strcmp(name, "scatter")) return value(0, rank * each + index);
  if (!strcmp(name, "alltoall")) return value(index / each, rank * each + index % each);
  if (strstr(name, "reduce") == NULL) return value(index / each, index % each);
  int at = !strcmp(name, "reduce_scatter") ? rank * each + index : index;
  float sum = 0;
  for (int from = 0; from < size; from++) sum += value(from, at);
  return sum;
}

static int wrong(const char *name, float *in, float *out, int count) {
  int found = 0, broadcasts = !strcmp(name, "broadcast") && !rank;
  for (int i = 0; i < count; i++) in[i] = value(rank, is_halo(name) ? i % (count / 2) : i), out[i] = broadcasts ? value(0, i) : -1;
  once(name, in, out, count);
  for (int i = 0; i < filled(name, count); i++) found += out[i] != expected(name, i, count);
  return found;
}

int main(int argc, char **argv) {
  if (argc < 5) return fprintf(stderr, "collectives NAME CPUS ITERATIONS SIZES...\n"), 2;
  const char *name = argv[1];
  settle(argv[2]);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &(int){1}, 0, &ring);
  int iterations = atoi(argv[3]);
  for (int arg = 4; arg < argc; arg++) {
    size_t bytes = strtoull(argv[arg], NULL, 10);
    int count = (int)(bytes / sizeof(float)) * (is_halo(name) ? 2 : 1), mine, all;
    float *in = malloc((size_t)count * sizeof(float) + 64), *out = malloc((size_t)count * sizeof(float) + 64);
    mine = wrong(name, in, out, count);
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < iterations / 10 + 5; i++) once(name, in, out, count);
    double begun = MPI_Wtime(), mean, sum;
    for (int i = 0; i < iterations; i++) once(name, in, out, count);
    mean = (MPI_Wtime() - begun) * 1e6 / iterations;
    MPI_Reduce(&mean, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf("%zu %.3f%s\n", bytes, sum / size, all ? " WRONG" : ""), fflush(stdout);
    free(in), free(out);
  }
  MPI_Finalize();
  return 0;
}
