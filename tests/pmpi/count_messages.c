/* Stands between a program and its MPI library, through the profiling interface, and counts what it sends.
 *
 * Preloaded into a rank, it adds up the payload of every message that is sent over a communicator made by
 * MPI_Comm_split, which is how the programs make theirs for collectives. At MPI_Finalize each rank writes
 *
 *     $COUNT_MESSAGES.<world rank>      "<communicators> <messages> <bytes>" and a line break
 *
 * With $SPOIL_MESSAGES = r, every message of world rank r over such a communicator arrives with a bit
 * flipped.
 */
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_communicators = 64 };

/* A progress thread may send while the main thread makes communicators. */
static _Atomic(MPI_Comm) communicators[most_communicators];
static atomic_int communicator_count;
static atomic_llong messages;
static atomic_llong bytes;

static int is_watched(MPI_Comm comm) {
  const int count = atomic_load(&communicator_count);
  for (int i = 0; i < count; ++i)
    if (atomic_load(&communicators[i]) == comm) return 1;
  return 0;
}

static int world_rank(void) {
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/* What is sent instead of `data`: a copy that lives until the process ends, or `data` itself. */
static const void* spoilt(const void* data, size_t length) {
  const char* spoiler = getenv("SPOIL_MESSAGES");
  if (spoiler == NULL || atoi(spoiler) != world_rank() || length < 8) return data;
  unsigned char* copy = malloc(length);
  if (copy == NULL) return data;
  memcpy(copy, data, length);
  copy[length / 8 * 4 + 2] ^= 0x40U; /* the highest digits of an fp32 in the middle: no rounding hides them */
  return copy;
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  const int code = PMPI_Comm_split(comm, color, key, made);
  if (code == MPI_SUCCESS && *made != MPI_COMM_NULL) {
    const int index = atomic_load(&communicator_count);
    if (index == most_communicators) PMPI_Abort(MPI_COMM_WORLD, 99);
    atomic_store(&communicators[index], *made);
    atomic_store(&communicator_count, index + 1);
  }
  return code;
}

int MPI_Isend_c(const void* data, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                MPI_Request* request) {
  if (is_watched(comm)) {
    int size = 0;
    PMPI_Type_size(type, &size);
    atomic_fetch_add(&messages, 1);
    atomic_fetch_add(&bytes, (long long)count * size);
    data = spoilt(data, (size_t)count * (size_t)size);
  }
  return PMPI_Isend_c(data, count, type, to, tag, comm, request);
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (is_watched(comm)) {
    int size = 0;
    PMPI_Type_size(type, &size);
    atomic_fetch_add(&messages, 1);
    atomic_fetch_add(&bytes, (long long)count * size);
    data = spoilt(data, (size_t)count * (size_t)size);
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Finalize(void) {
  const char* prefix = getenv("COUNT_MESSAGES");
  if (prefix != NULL) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", prefix, world_rank());
    FILE* file = fopen(path, "w");
    if (file != NULL) {
      fprintf(file, "%d %lld %lld\n", atomic_load(&communicator_count), atomic_load(&messages),
              atomic_load(&bytes));
      fclose(file);
    }
  }
  return PMPI_Finalize();
}
