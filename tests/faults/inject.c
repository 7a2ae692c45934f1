// clang-format off
/* Makes things go wrong in a rank, on demand. Preloaded into ranks (mpiexec -genv LD_PRELOAD ...); what goes
 * wrong is said by the environment. What is not asked for is only passed on.
 *
 *   FAULT_RANK=r            the rank that it befalls; without it every rank
 *
 *   FAULT_CALL=name         one of the functions wrapped below
 *   FAULT_AT=k              at its k-th call in that process, from 1
 *   FAULT_KIND=kind         error   an MPI function answers MPI_ERR_OTHER and does nothing
 *                           kill    SIGKILL, as the out-of-memory killer sends
 *                           segv    SIGSEGV
 *                           abort   abort(), as a failed assertion does
 *                           leave   _exit(0): gone without a word, and with the exit code of success
 *                           stop    the calling thread sleeps for ever
 *                           freeze  SIGSTOP: every thread stands still, so that the rank itself can notice nothing
 *
 *   FAULT_THREAD_LEVEL=n    the MPI library provides no more than that level of threads (0 is MPI_THREAD_SINGLE)
 *   FAULT_SLOW_US=n         each sgemm_ takes n microseconds longer
 *   FAULT_MEMORY_BYTES=n    memory of tensor size (16 KiB and more) is refused once n bytes of it have been handed out
 *   FAULT_WRITE_BYTES=n     of what is written to files named *.h5 only n bytes find room; then
 *   FAULT_WRITE_ERRNO       is the error (28, ENOSPC)
 *
 *   FAULT_FLUSH_LOG=path    after each H5Fflush that succeeded, one line is appended: "<pid> steps=<rows> events=..."
 *   FAULT_BALANCE_LOG=path  to <path>.<rank>, each 100 sends, "<communicators> <fewest requests in flight since then>"
 */
// clang-format on
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <mpi.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { tensor_size = 16 << 10, blas_buffer = 16 << 20, most_tables = 32, sends_per_line = 100 };

static long long number(const char* name, long long otherwise) {
  const char* text = getenv(name);
  return text == NULL ? otherwise : atoll(text);
}

/* By the launcher's variable, which is there before MPI_Init. */
static int befalls_this_rank(void) {
  return number("FAULT_RANK", -1) < 0 || number("FAULT_RANK", -1) == number("PMI_RANK", 0);
}

static void* next(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == NULL) {
    fprintf(stderr, "inject: no %s behind this library\n", name);
    _exit(99);
  }
  return found;
}

/* --- a fault at the k-th call of a function
 * -------------------------------------------------------------------------- */

/* Whether the call shall fail; the other kinds happen here. */
static int meets_fault(const char* call) {
  static atomic_llong calls;
  const char* wanted = getenv("FAULT_CALL");
  if (wanted == NULL || strcmp(wanted, call) != 0 || !befalls_this_rank()) return 0;
  if (atomic_fetch_add(&calls, 1) + 1 != number("FAULT_AT", 1)) return 0;
  const char* kind = getenv("FAULT_KIND");
  if (kind == NULL) return 0;
  const struct rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (strcmp(kind, "error") == 0) return 1;
  if (strcmp(kind, "kill") == 0) raise(SIGKILL);
  if (strcmp(kind, "segv") == 0) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  if (strcmp(kind, "abort") == 0) abort();
  if (strcmp(kind, "leave") == 0) _exit(0);
  if (strcmp(kind, "freeze") == 0) raise(SIGSTOP);
  if (strcmp(kind, "stop") == 0)
    for (;;) sleep(1000);
  return 0;
}

/* --- balances
 * -------------------------------------------------------------------------------------------------------- */

static atomic_int communicators;
static atomic_int requests;
static atomic_int fewest_requests;

static void request_ended(int count) {
  const int left = atomic_fetch_sub(&requests, count) - count;
  if (left < atomic_load(&fewest_requests)) atomic_store(&fewest_requests, left);
}

static void request_began(void) {
  static atomic_int sends;
  atomic_fetch_add(&requests, 1);
  const char* prefix = getenv("FAULT_BALANCE_LOG");
  if (prefix == NULL || (atomic_fetch_add(&sends, 1) + 1) % sends_per_line != 0) return;
  char path[4096];
  snprintf(path, sizeof path, "%s.%lld", prefix, number("PMI_RANK", 0));
  FILE* file = fopen(path, "a");
  if (file == NULL) return;
  fprintf(file, "%d %d\n", atomic_load(&communicators), atomic_load(&fewest_requests));
  fclose(file);
  atomic_store(&fewest_requests, atomic_load(&requests));
}

static atomic_int is_initialised;

static int created(int code, const MPI_Comm* made) {
  if (code == MPI_SUCCESS && *made != MPI_COMM_NULL) atomic_fetch_add(&communicators, 1);
  return code;
}

/* --- MPI
 * -------------------------------------------------------------------------------------------------------------
 */

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  if (meets_fault("MPI_Init_thread")) return MPI_ERR_OTHER;
  const int code = PMPI_Init_thread(argc, argv, required, provided);
  const int most = (int)number("FAULT_THREAD_LEVEL", *provided);
  if (befalls_this_rank() && *provided > most) *provided = most;
  atomic_store(&is_initialised, 1);
  return code;
}

int MPI_Finalize(void) {
  if (meets_fault("MPI_Finalize")) return MPI_ERR_OTHER;
  return PMPI_Finalize();
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  if (meets_fault("MPI_Comm_split_type")) return MPI_ERR_OTHER;
  return created(PMPI_Comm_split_type(comm, type, key, info, made), made);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  if (meets_fault("MPI_Comm_split")) return MPI_ERR_OTHER;
  return created(PMPI_Comm_split(comm, color, key, made), made);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  if (meets_fault("MPI_Comm_dup")) return MPI_ERR_OTHER;
  return created(PMPI_Comm_dup(comm, made), made);
}

int MPI_Comm_free(MPI_Comm* comm) {
  atomic_fetch_sub(&communicators, 1);
  return PMPI_Comm_free(comm);
}

int MPI_Allreduce(const void* data, void* result, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  if (meets_fault("MPI_Allreduce")) return MPI_ERR_OTHER;
  return PMPI_Allreduce(data, result, count, type, op, comm);
}

int MPI_Isend_c(const void* data, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                MPI_Request* request) {
  if (meets_fault("MPI_Isend_c")) return MPI_ERR_OTHER;
  request_began();
  return PMPI_Isend_c(data, count, type, to, tag, comm, request);
}

int MPI_Irecv_c(void* data, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                MPI_Request* request) {
  if (meets_fault("MPI_Irecv_c")) return MPI_ERR_OTHER;
  request_began();
  return PMPI_Irecv_c(data, count, type, from, tag, comm, request);
}

int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  if (meets_fault("MPI_Test")) return MPI_ERR_OTHER;
  const int was_pending = *request != MPI_REQUEST_NULL;
  const int code = PMPI_Test(request, done, status);
  if (was_pending && code == MPI_SUCCESS && *done) request_ended(1);
  return code;
}

int MPI_Testall(int count, MPI_Request all[], int* done, MPI_Status statuses[]) {
  if (meets_fault("MPI_Testall")) return MPI_ERR_OTHER;
  int were_pending = 0;
  for (int i = 0; i < count; ++i) were_pending += all[i] != MPI_REQUEST_NULL;
  const int code = PMPI_Testall(count, all, done, statuses);
  if (code == MPI_SUCCESS && *done) request_ended(were_pending);
  return code;
}

/* --- compute
 * ---------------------------------------------------------------------------------------------------------
 */

typedef void (*sgemm_function)(const char*, const char*, const int*, const int*, const int*, const float*,
                               const float*, const int*, const float*, const int*, const float*, float*,
                               const int*);

void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc) {
  static _Atomic(sgemm_function) real;
  if (atomic_load(&real) == NULL) atomic_store(&real, (sgemm_function)next("sgemm_"));
  meets_fault("sgemm_");
  if (befalls_this_rank() && number("FAULT_SLOW_US", 0) > 0) usleep((useconds_t)number("FAULT_SLOW_US", 0));
  atomic_load (&real)(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/* --- files
 * -----------------------------------------------------------------------------------------------------------
 */

/* How much of a write finds room: -1 with errno where nothing does. */
static ssize_t room_for(int file, size_t wanted) {
  static atomic_llong written;
  const long long limit = number("FAULT_WRITE_BYTES", -1);
  if (limit < 0 || !befalls_this_rank()) return (ssize_t)wanted;
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path);
  if (length < 3 || strncmp(path + length - 3, ".h5", 3) != 0) return (ssize_t)wanted;
  const long long left = limit - atomic_fetch_add(&written, (long long)wanted);
  if (left >= (long long)wanted) return (ssize_t)wanted;
  if (left > 0) return (ssize_t)left; /* a disk that is nearly full takes what it can */
  errno = (int)number("FAULT_WRITE_ERRNO", ENOSPC);
  return -1;
}

typedef ssize_t (*pwrite_function)(int, const void*, size_t, off_t);
typedef ssize_t (*write_function)(int, const void*, size_t);

static ssize_t limited_pwrite(const char* name, int file, const void* data, size_t size, off_t at) {
  meets_fault("pwrite");
  const ssize_t room = room_for(file, size);
  return room < 0 ? -1 : ((pwrite_function)next(name))(file, data, (size_t)room, at);
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
  return limited_pwrite("pwrite", file, data, size, at);
}
ssize_t pwrite64(int file, const void* data, size_t size, off64_t at) {
  return limited_pwrite("pwrite64", file, data, size, at);
}
ssize_t write(int file, const void* data, size_t size) {
  const ssize_t room = room_for(file, size);
  return room < 0 ? -1 : ((write_function)next("write"))(file, data, (size_t)room);
}

/* --- what has been flushed
 * ------------------------------------------------------------------------------------------- */

typedef struct {
  hid_t id;
  char name[64];
  unsigned long long rows;
} Table;
static Table tables[most_tables]; /* HDF5 is called by one thread at a time */
static int table_count;

herr_t H5Dset_extent(hid_t dataset, const hsize_t size[]) {
  const herr_t code = ((herr_t(*)(hid_t, const hsize_t[]))next("H5Dset_extent"))(dataset, size);
  if (code < 0 || getenv("FAULT_FLUSH_LOG") == NULL) return code;
  int i = 0;
  while (i < table_count && tables[i].id != dataset) ++i;
  if (i == most_tables) _exit(99);
  if (i == table_count) {
    ssize_t (*name_of)(hid_t, char*, size_t) = (ssize_t(*)(hid_t, char*, size_t))next("H5Iget_name");
    name_of(dataset, tables[i].name, sizeof tables[i].name);
    tables[i].id = dataset;
    ++table_count;
  }
  tables[i].rows = size[0];
  return code;
}

herr_t H5Fflush(hid_t object, H5F_scope_t scope) {
  const herr_t code = ((herr_t(*)(hid_t, H5F_scope_t))next("H5Fflush"))(object, scope);
  const char* path = getenv("FAULT_FLUSH_LOG");
  if (code < 0 || path == NULL) return code;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  char line[4096];
  int length =
      snprintf(line, sizeof line, "%d %lld.%09ld", (int)getpid(), (long long)now.tv_sec, now.tv_nsec);
  for (int i = 0; i < table_count; ++i)
    length +=
        snprintf(line + length, sizeof line - (size_t)length, " %s=%llu", tables[i].name + 1, tables[i].rows);
  line[length++] = '\n';
  /* One system call: whoever is killed has written the whole line or nothing. */
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0 || ((write_function)next("write"))(file, line, (size_t)length) != length) _exit(99);
  close(file);
  return code;
}

/* --- memory
 * ----------------------------------------------------------------------------------------------------------
 */

/* dlsym itself allocates, so what lies behind malloc is called by glibc's own names. A sanitizer's run-time
 * library comes first and keeps these calls to itself. */
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

static int is_refused(size_t size) {
  static atomic_llong handed_out;
  if (size < tensor_size || size >= blas_buffer || !atomic_load(&is_initialised)) return 0;
  const long long limit = number("FAULT_MEMORY_BYTES", -1);
  if (limit < 0 || !befalls_this_rank()) return 0;
  if (atomic_fetch_add(&handed_out, (long long)size) + (long long)size <= limit) return 0;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return is_refused(size) ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) {
  return is_refused(count * size) ? NULL : __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) { return is_refused(size) ? NULL : __libc_realloc(old, size); }
void* aligned_alloc(size_t alignment, size_t size) {
  return is_refused(size) ? NULL : __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  void* memory = is_refused(size) ? NULL : __libc_memalign(alignment, size);
  if (memory == NULL) return ENOMEM;
  *out = memory;
  return 0;
}
void* mmap(void* address, size_t length, int protection, int flags, int file, off_t offset) {
  if (file < 0 && is_refused(length)) return MAP_FAILED;
  const long result = syscall(SYS_mmap, address, length, protection, flags, file, offset);
  return result == -1 ? MAP_FAILED : (void*)result; /* NOLINT: an address */
}
