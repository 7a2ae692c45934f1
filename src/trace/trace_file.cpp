#include "src/trace/trace_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "src/errors.hpp"
#include "src/trace/checksums.hpp"

namespace shardbench {
namespace {

// Events chunks of 0.2 MB: what a small run's file costs at least.
// Chunks are not compressed: a compressed chunk changes its size and so its place whenever rows are added,
// and a process killed in the middle of that takes rows with it that had been flushed before. An uncompressed
// one stays where it is.
constexpr hsize_t chunk_rows = 1024;

// More than a flush adds to the file: a new chunk of each table (1.2 MB together) and the index of chunks.
// Rows that fill whole chunks are written when they are appended.
constexpr hsize_t flush_reserve = hsize_t{2} << 20;

/// The reason, where the system gave one: HDF5 leaves errno as the failed system call set it.
std::string system_reason() { return errno == 0 ? "refused by the HDF5 library" : std::strerror(errno); }

/// Owns any HDF5 identifier.
class Id {
 public:
  Id() = default;
  Id(hid_t id, herr_t (*close)(hid_t), const char* what) : id_(id), close_(close) {
    if (id < 0) throw RunError(fmt::format("{} failed: {}", what, system_reason()));
  }
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Id& operator=(Id&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  ~Id() {
    if (id_ >= 0) close_(id_);
  }
  [[nodiscard]] hid_t get() const { return id_; }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

void check(herr_t code, const char* what) {
  if (code < 0) throw RunError(fmt::format("{} failed: {}", what, system_reason()));
}

template <std::size_t Size>
struct Text {
  std::array<char, Size> characters{};
  Text() = default;
  explicit Text(std::string_view value) { value.copy(characters.data(), Size); }
};

// Rows as they lie in the file. Field order here is column order there.
struct RankFileRow {
  std::int32_t rank, dp_index, tp_index, local_rank;
  Text<256> host;
  std::int32_t pid, threads, allowed_cpus;
  Text<128> affinity;
  Text<64> device;
};
struct StepFileRow {
  std::int32_t rank, step, warmup;
  double start_s, step_s, compute_s, exposed_s, exposed_ag_forward_s, exposed_ag_backward_s, exposed_rs_s,
      exposed_ar_s, optimizer_s, other_s;
  std::int64_t tokens;
  double loss, grad_norm;
};
struct EventFileRow {
  std::int32_t rank, step, micro, layer, bucket;
  Text<10> phase;
  Text<14> kind;
  Text<8> stream;
  Text<6> axis;
  Text<12> algorithm;
  Text<6> dtype;
  std::int32_t group_size;
  std::int64_t elements, bytes, sent_bytes;
  double issue_s, start_s, end_s, wait_s;
};
struct MemoryFileRow {
  std::int32_t rank, step;
  double at_s;
  Text<20> category;
  std::int64_t bytes;
};
struct MemoryPeakFileRow {
  std::int32_t rank;
  Text<20> category;
  std::int64_t peak_bytes;
};
struct LedgerFileRow {
  std::int32_t rank;
  Text<6> axis;
  Text<32> quantity;
  double expected, measured, padding;
  Text<12> unit;
};
struct TensorFileRow {
  std::int32_t index;
  Text<32> name;
  std::int64_t elements;
  double sum, sum_of_squares;
};
struct CollectiveFileRow {
  std::int32_t rank, line;
  Text<14> collective;
  Text<12> algorithm;
  Text<6> dtype;
  Text<8> reduction;
  std::int64_t size_bytes, count;
  std::int32_t repetition, warmup;
  double start_s, end_s;
  std::int64_t sent_bytes, wrong;
  std::int32_t window;
  Text<10> stop;
};
struct CalibrationFileRow {
  Text<12> kind;
  std::int32_t layer;
  Text<12> direction;
  double compute_alone_s, communication_alone_s;
};

Id text_type(std::size_t size) {
  Id type(H5Tcopy(H5T_C_S1), H5Tclose, "H5Tcopy");
  check(H5Tset_size(type.get(), size), "H5Tset_size");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "H5Tset_cset");
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "H5Tset_strpad");
  return type;
}

/// The HDF5 type of a field, from its C++ type.
template <class Field>
Id field_type() {
  if constexpr (std::is_same_v<Field, std::int32_t>) {
    return {H5Tcopy(H5T_NATIVE_INT32), H5Tclose, "H5Tcopy"};
  } else if constexpr (std::is_same_v<Field, std::int64_t>) {
    return {H5Tcopy(H5T_NATIVE_INT64), H5Tclose, "H5Tcopy"};
  } else if constexpr (std::is_same_v<Field, double>) {
    return {H5Tcopy(H5T_NATIVE_DOUBLE), H5Tclose, "H5Tcopy"};
  } else {
    return text_type(sizeof(Field));
  }
}

/// Builds a compound type column by column.
template <class Row>
class RowType {
 public:
  RowType() : type_(H5Tcreate(H5T_COMPOUND, sizeof(Row)), H5Tclose, "H5Tcreate") {}
  template <class Field>
  RowType& column(const char* name, std::size_t offset, Field Row::* /*member*/) {
    const Id field = field_type<Field>();
    check(H5Tinsert(type_.get(), name, offset, field.get()), "H5Tinsert");
    return *this;
  }
  Id take() { return std::move(type_); }

 private:
  Id type_;
};
#define SHARDBENCH_COLUMN(Row, field) column(#field, offsetof(Row, field), &Row::field)

Id ranks_type() {
  using R = RankFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, rank)
      .SHARDBENCH_COLUMN(R, dp_index)
      .SHARDBENCH_COLUMN(R, tp_index)
      .SHARDBENCH_COLUMN(R, local_rank)
      .SHARDBENCH_COLUMN(R, host)
      .SHARDBENCH_COLUMN(R, pid)
      .SHARDBENCH_COLUMN(R, threads)
      .SHARDBENCH_COLUMN(R, allowed_cpus)
      .SHARDBENCH_COLUMN(R, affinity)
      .SHARDBENCH_COLUMN(R, device)
      .take();
}
Id clock_type() {
  using R = ClockRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, rank)
      .SHARDBENCH_COLUMN(R, at_s)
      .SHARDBENCH_COLUMN(R, offset_s)
      .SHARDBENCH_COLUMN(R, uncertainty_s)
      .take();
}
Id steps_type() {
  using R = StepFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, rank)
      .SHARDBENCH_COLUMN(R, step)
      .SHARDBENCH_COLUMN(R, warmup)
      .SHARDBENCH_COLUMN(R, start_s)
      .SHARDBENCH_COLUMN(R, step_s)
      .SHARDBENCH_COLUMN(R, compute_s)
      .SHARDBENCH_COLUMN(R, exposed_s)
      .SHARDBENCH_COLUMN(R, exposed_ag_forward_s)
      .SHARDBENCH_COLUMN(R, exposed_ag_backward_s)
      .SHARDBENCH_COLUMN(R, exposed_rs_s)
      .SHARDBENCH_COLUMN(R, exposed_ar_s)
      .SHARDBENCH_COLUMN(R, optimizer_s)
      .SHARDBENCH_COLUMN(R, other_s)
      .SHARDBENCH_COLUMN(R, tokens)
      .SHARDBENCH_COLUMN(R, loss)
      .SHARDBENCH_COLUMN(R, grad_norm)
      .take();
}
Id events_type() {
  using R = EventFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, rank)
      .SHARDBENCH_COLUMN(R, step)
      .SHARDBENCH_COLUMN(R, micro)
      .SHARDBENCH_COLUMN(R, layer)
      .SHARDBENCH_COLUMN(R, bucket)
      .SHARDBENCH_COLUMN(R, phase)
      .SHARDBENCH_COLUMN(R, kind)
      .SHARDBENCH_COLUMN(R, stream)
      .SHARDBENCH_COLUMN(R, axis)
      .SHARDBENCH_COLUMN(R, algorithm)
      .SHARDBENCH_COLUMN(R, dtype)
      .SHARDBENCH_COLUMN(R, group_size)
      .SHARDBENCH_COLUMN(R, elements)
      .SHARDBENCH_COLUMN(R, bytes)
      .SHARDBENCH_COLUMN(R, sent_bytes)
      .SHARDBENCH_COLUMN(R, issue_s)
      .SHARDBENCH_COLUMN(R, start_s)
      .SHARDBENCH_COLUMN(R, end_s)
      .SHARDBENCH_COLUMN(R, wait_s)
      .take();
}
Id memory_type() {
  using R = MemoryFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, rank)
      .SHARDBENCH_COLUMN(R, step)
      .SHARDBENCH_COLUMN(R, at_s)
      .SHARDBENCH_COLUMN(R, category)
      .SHARDBENCH_COLUMN(R, bytes)
      .take();
}
Id memory_peak_type() {
  using R = MemoryPeakFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, rank)
      .SHARDBENCH_COLUMN(R, category)
      .SHARDBENCH_COLUMN(R, peak_bytes)
      .take();
}
Id ledger_type() {
  using R = LedgerFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, rank)
      .SHARDBENCH_COLUMN(R, axis)
      .SHARDBENCH_COLUMN(R, quantity)
      .SHARDBENCH_COLUMN(R, expected)
      .SHARDBENCH_COLUMN(R, measured)
      .SHARDBENCH_COLUMN(R, padding)
      .SHARDBENCH_COLUMN(R, unit)
      .take();
}
Id tensors_type() {
  using R = TensorFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, index)
      .SHARDBENCH_COLUMN(R, name)
      .SHARDBENCH_COLUMN(R, elements)
      .SHARDBENCH_COLUMN(R, sum)
      .SHARDBENCH_COLUMN(R, sum_of_squares)
      .take();
}
Id calibration_type() {
  using R = CalibrationFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, kind)
      .SHARDBENCH_COLUMN(R, layer)
      .SHARDBENCH_COLUMN(R, direction)
      .SHARDBENCH_COLUMN(R, compute_alone_s)
      .SHARDBENCH_COLUMN(R, communication_alone_s)
      .take();
}
Id collectives_type() {
  using R = CollectiveFileRow;
  return RowType<R>()
      .SHARDBENCH_COLUMN(R, rank)
      .SHARDBENCH_COLUMN(R, line)
      .SHARDBENCH_COLUMN(R, collective)
      .SHARDBENCH_COLUMN(R, algorithm)
      .SHARDBENCH_COLUMN(R, dtype)
      .SHARDBENCH_COLUMN(R, reduction)
      .SHARDBENCH_COLUMN(R, size_bytes)
      .SHARDBENCH_COLUMN(R, count)
      .SHARDBENCH_COLUMN(R, repetition)
      .SHARDBENCH_COLUMN(R, warmup)
      .SHARDBENCH_COLUMN(R, start_s)
      .SHARDBENCH_COLUMN(R, end_s)
      .SHARDBENCH_COLUMN(R, sent_bytes)
      .SHARDBENCH_COLUMN(R, wrong)
      .SHARDBENCH_COLUMN(R, window)
      .SHARDBENCH_COLUMN(R, stop)
      .take();
}

/// Where a column lies in a row.
struct Column {
  std::string description;  ///< name, type as numpy writes it, offset: "rank <i4 0"
  std::size_t offset = 0;
  std::size_t size = 0;
};

std::vector<Column> columns_of(hid_t row_type) {
  std::vector<Column> columns;
  const int count = H5Tget_nmembers(row_type);
  check(count, "H5Tget_nmembers");
  for (unsigned i = 0; i < static_cast<unsigned>(count); ++i) {
    const Id type(H5Tget_member_type(row_type, i), H5Tclose, "H5Tget_member_type");
    const std::unique_ptr<char, herr_t (*)(void*)> name(H5Tget_member_name(row_type, i), H5free_memory);
    const H5T_class_t kind = H5Tget_class(type.get());
    const std::size_t offset = H5Tget_member_offset(row_type, i);
    const std::size_t size = H5Tget_size(type.get());
    const std::string_view letter = kind == H5T_STRING ? "|S" : kind == H5T_INTEGER ? "i" : "f";
    const std::string_view order = kind == H5T_STRING                         ? ""
                                   : H5Tget_order(type.get()) == H5T_ORDER_LE ? "<"
                                                                              : ">";
    columns.push_back({fmt::format("{} {}{}{} {}", name.get(), order, letter, size, offset), offset, size});
  }
  return columns;
}

/// An extensible one-dimensional dataset of rows.
class Table {
 public:
  Table() = default;
  Table(hid_t file, const char* name, Id type)
      : type_(std::move(type)), name_(name), columns_(columns_of(type_.get())) {
    // The layout is summed too: a damaged one would make other numbers of the same bytes.
    for (const Column& column : columns_) crc_.add(column.description + "\n");
    crc_.add(fmt::format("{}\n", H5Tget_size(type_.get())));
    const hsize_t empty = 0;
    const hsize_t unlimited = H5S_UNLIMITED;
    const Id space(H5Screate_simple(1, &empty, &unlimited), H5Sclose, "H5Screate_simple");
    const Id properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "H5Pcreate");
    check(H5Pset_chunk(properties.get(), 1, &chunk_rows), "H5Pset_chunk");
    dataset_ =
        Id(H5Dcreate2(file, name, type_.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
           H5Dclose, "H5Dcreate2");
  }

  template <class Row>
  void append(std::span<const Row> rows) {
    if (rows.empty()) return;
    const hsize_t begin = rows_;
    const hsize_t count = rows.size();
    rows_ += count;
    check(H5Dset_extent(dataset_.get(), &rows_), "H5Dset_extent");
    const Id file_space(H5Dget_space(dataset_.get()), H5Sclose, "H5Dget_space");
    check(H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, &begin, nullptr, &count, nullptr),
          "H5Sselect_hyperslab");
    const Id memory_space(H5Screate_simple(1, &count, nullptr), H5Sclose, "H5Screate_simple");
    const std::vector<std::byte> image = image_of(rows);
    check(H5Dwrite(dataset_.get(), type_.get(), memory_space.get(), file_space.get(), H5P_DEFAULT,
                   image.data()),
          "H5Dwrite");
    crc_.add(image);
  }

  void note_checksum(Checksums& sums) const { sums.set_table(name_, crc_); }

 private:
  /// The rows with zeros between the columns, where C++ leaves whatever the memory held before.
  template <class Row>
  std::vector<std::byte> image_of(std::span<const Row> rows) const {
    std::vector<std::byte> image(rows.size_bytes());
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (const Column& column : columns_)
        std::memcpy(image.data() + i * sizeof(Row) + column.offset,
                    reinterpret_cast<const std::byte*>(&rows[i]) + column.offset, column.size);
    return image;
  }

  Id type_;
  Id dataset_;
  std::string name_;
  std::vector<Column> columns_;
  Crc32 crc_;  ///< of layout and rows
  hsize_t rows_ = 0;
};

template <class FileRow, class Row, class Convert>
std::vector<FileRow> convert(std::span<const Row> rows, Convert convert_row) {
  std::vector<FileRow> result;
  result.reserve(rows.size());
  for (const Row& row : rows) result.push_back(convert_row(row));
  return result;
}

/// Before the first file.
void prepare_library() {
  // At exit the library would try again to write what could not be written, and has crashed in doing so. (It
  // answers with an error when it has been told before.)
  H5dont_atexit();
  check(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr),
        "H5Eset_auto2");  // one line of ours instead of HDF5's stack
}

/// Device and inode; zeros where there is no such file.
using Identity = std::pair<dev_t, ino_t>;
Identity identity_of(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? Identity{status.st_dev, status.st_ino} : Identity{};
}

/// Whether the user has told HDF5 to do without file locks.
bool locking_is_off() {
  const char* choice = std::getenv("HDF5_USE_FILE_LOCKING");
  return choice != nullptr && std::string_view(choice) == "FALSE";
}

/// Creates or opens the file first with plain system calls: their reasons are clear, O_EXCL leaves no moment
/// for a second run to slip in, and a file that another run is writing is refused before H5Fcreate truncates
/// it.
void open_path(const std::string& path, ExistingFile existing) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw RunError(fmt::format("cannot write {}: it is not a regular file; choose another --output", path));
  const int exclusive = existing == ExistingFile::refuse ? O_EXCL : 0;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | exclusive, 0666);
  if (file < 0 && errno == EEXIST)
    throw UsageError(
        fmt::format("{} exists; pass --overwrite to replace it or choose another --output", path));
  if (file < 0)
    throw RunError(
        fmt::format("cannot write {}: {}; choose a writable --output", path, std::strerror(errno)));
  const bool locked_elsewhere =
      !locking_is_off() && flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(file);
  if (locked_elsewhere)
    throw RunError(
        fmt::format("cannot write {}: another process has it open and locked; choose another --output (or "
                    "set HDF5_USE_FILE_LOCKING=FALSE if you know better)",
                    path));
}

}  // namespace

std::string_view name_of(RunStatus status) {
  constexpr std::array<std::string_view, 4> names = {"running", "complete", "interrupted", "failed"};
  return names[static_cast<std::size_t>(status)];
}

std::string_view name_of(Stop stop) {
  constexpr std::array<std::string_view, 4> names = {"iterations", "precision", "budget", "rows"};
  return names[static_cast<std::size_t>(stop)];
}

class TraceFile::Impl {
 public:
  Impl(const std::string& path, Tables tables)
      : path_(path),
        file_(create(path)),
        identity_(identity_of(path)),
        ranks(file_.get(), "ranks", ranks_type()),
        clock(file_.get(), "clock", clock_type()),
        steps(file_.get(), "steps", steps_type()),
        events(file_.get(), "events", events_type()),
        memory(file_.get(), "memory", memory_type()),
        memory_peak(file_.get(), "memory_peak", memory_peak_type()),
        ledger(file_.get(), "ledger", ledger_type()),
        tensors(file_.get(), "tensors", tensors_type()),
        calibration(file_.get(), "calibration", calibration_type()) {
    if (tables == Tables::collectives) collectives.emplace(file_.get(), "collectives", collectives_type());
  }

  /// Whether a write has failed.
  [[nodiscard]] bool broken() const { return broken_; }

  /// Runs `work`; an error then says which file could not be written.
  template <class Work>
  void guarded(Work work) {
    errno = 0;
    try {
      work();
    } catch (const RunError& error) {
      broken_ = true;
      throw RunError(fmt::format("cannot write {}: {}{}", path_, error.what(),
                                 flushed_ ? "; windows flushed before are kept" : ""));
    }
  }

  void set_attribute(const std::string& name, hid_t type, const void* value) {
    if (H5Aexists(file_.get(), name.c_str()) > 0) check(H5Adelete(file_.get(), name.c_str()), "H5Adelete");
    const Id space(H5Screate(H5S_SCALAR), H5Sclose, "H5Screate");
    const Id attribute(H5Acreate2(file_.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                       H5Aclose, "H5Acreate2");
    check(H5Awrite(attribute.get(), type, value), "H5Awrite");
  }

  void set_config(const std::string& json) {
    const Id type = text_type(H5T_VARIABLE);
    const Id space(H5Screate(H5S_SCALAR), H5Sclose, "H5Screate");
    const Id dataset(
        H5Dcreate2(file_.get(), "config", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        H5Dclose, "H5Dcreate2");
    const char* text = json.c_str();
    check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, &text), "H5Dwrite");
    checksums.set_config(text);
  }

  void set_text(const std::string& name, const std::string& value) {
    const Id type = text_type(H5T_VARIABLE);
    const char* text = value.c_str();
    set_attribute(name, type.get(), &text);
  }

  /// The sums of everything written so far; to be called when nothing but the status is still to come.
  void set_checksums() {
    for (const Table* table :
         {&ranks, &clock, &steps, &events, &memory, &memory_peak, &ledger, &tensors, &calibration})
      table->note_checksum(checksums);
    if (collectives) collectives->note_checksum(checksums);
    set_text("checksums", checksums.json());
  }

  void flush() {
    reserve();
    check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), "H5Fflush");
    flushed_ = true;
  }

  void check_that_it_is_there() {
    if (identity_of(path_) == identity_) return;
    broken_ = true;
    throw RunError(fmt::format(
        "{} was removed or replaced while the run wrote to it, so its results are lost; leave the "
        "output alone until the run has ended",
        path_));
  }

  /// From now on HDF5 writes to nowhere, and others may have the file. One that was never flushed holds
  /// nothing: it is removed, so that it does not stand in the way of the next run.
  void let_go() noexcept {
    void* handle = nullptr;
    if (H5Fget_vfd_handle(file_.get(), H5P_DEFAULT, &handle) < 0) return;
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nowhere < 0) return;
    dup2(nowhere, *static_cast<const int*>(handle));  // with the file goes its lock
    close(nowhere);
    if (!flushed_ && identity_of(path_) == identity_) unlink(path_.c_str());
  }

  /// Network file systems tell of a full disk as late as here.
  void sync() const {
    const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    const int result = file < 0 ? -1 : fsync(file);
    const int error = errno;
    if (file >= 0) close(file);
    errno = error;
    check(result, "fsync");
  }

 private:
  /// Takes from the file system what a flush may need, so that a full disk is noticed before the flush has
  /// written the file's new length over the old one: such a file could not be opened any more. HDF5 cuts off
  /// what is left over.
  void reserve() {
    haddr_t end = 0;
    check(H5Fget_eoa(file_.get(), &end), "H5Fget_eoa");
    void* handle = nullptr;
    check(H5Fget_vfd_handle(file_.get(), H5P_DEFAULT, &handle), "H5Fget_vfd_handle");
    const int file = *static_cast<const int*>(handle);
    const auto target = static_cast<off_t>(end + flush_reserve);
    errno = 0;
    if (fallocate(file, 0, 0, target) == 0) return;
    // Not every file system can reserve; all can at least say that a file may not grow so far.
    if (errno == EOPNOTSUPP) errno = ftruncate(file, target) == 0 ? 0 : errno;
    check(errno == 0 ? 0 : -1, "reserving space");
  }

  static Id create(const std::string& path) {
    prepare_library();
    errno = 0;
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const int error = errno;
    if (file < 0)
      throw RunError(
          fmt::format("cannot create the HDF5 file {}: {}; if another process has it open or the file "
                      "system has no locks, choose another --output or set HDF5_USE_FILE_LOCKING=FALSE",
                      path, error == 0 ? "refused by the HDF5 library" : std::strerror(error)));
    return {file, H5Fclose, "H5Fcreate"};
  }

  std::string path_;
  Id file_;  // before the tables, which close first
  Identity identity_;
  bool broken_ = false;
  bool flushed_ = false;

 public:
  Table ranks, clock, steps, events, memory, memory_peak, ledger, tensors, calibration;
  std::optional<Table> collectives;
  Checksums checksums;
};

TraceFile::TraceFile(const std::string& path, ExistingFile existing, Tables tables) {
  const bool existed = access(path.c_str(), F_OK) == 0;
  open_path(path, existing);
  try {
    impl_ = std::make_unique<Impl>(path, tables);
  } catch (const RunError&) {
    if (!existed) unlink(path.c_str());
    throw;
  }
  set("schema", "shardbench");
  set("schema_version", schema_version);
  try {
    set_status(RunStatus::running);
    flush();  // from its first moment on it is a file that opens
  } catch (const RunError&) {
    give_up();
    throw;
  }
}

TraceFile::~TraceFile() { give_up(); }

void TraceFile::give_up() {
  // After a failed write, closing would write once more: parts of what had failed, over what had been flushed
  // and is whole.
  if (impl_ && impl_->broken()) impl_->let_go();
  impl_.reset();
}

void TraceFile::set(const std::string& attribute, const std::string& value) {
  impl_->guarded([&] { impl_->set_text(attribute, value); });
  impl_->checksums.set_attribute(
      attribute, value.substr(0, value.find('\0')));  // without what follows a zero byte, as in the file
}

void TraceFile::set(const std::string& attribute, std::int64_t value) {
  impl_->guarded([&] { impl_->set_attribute(attribute, H5T_NATIVE_INT64, &value); });
  impl_->checksums.set_attribute(attribute, fmt::format("{}", value));
}

void TraceFile::set(const std::string& attribute, double value) {
  impl_->guarded([&] { impl_->set_attribute(attribute, H5T_NATIVE_DOUBLE, &value); });
  impl_->checksums.set_attribute(attribute, fmt::format("{:.17g}", value));
}

void TraceFile::set_status(RunStatus status) {
  const std::string name(name_of(status));
  if (status != RunStatus::running) {
    // Before the status itself: a file that says complete always has sums.
    impl_->checksums.set_attribute("status", name);
    impl_->guarded([&] { impl_->set_checksums(); });
  }
  set("status", name);
}

void TraceFile::set_config(const std::string& json) {
  impl_->guarded([&] { impl_->set_config(json); });
}

void TraceFile::append(std::span<const RankRow> rows) {
  impl_->guarded([&] {
    impl_->ranks.append<RankFileRow>(convert<RankFileRow>(rows, [](const RankRow& r) {
      return RankFileRow{r.rank,
                         r.dp_index,
                         r.tp_index,
                         r.placement.local_rank,
                         Text<256>(r.placement.host),
                         r.pid,
                         r.threads,
                         r.placement.allowed_cpus,
                         Text<128>(r.placement.affinity),
                         Text<64>(r.device)};
    }));
  });
}

void TraceFile::append(std::span<const ClockRow> rows) {
  impl_->guarded([&] { impl_->clock.append(rows); });
}

void TraceFile::append(int rank, std::span<const StepRecord> rows) {
  impl_->guarded([&] {
    impl_->steps.append<StepFileRow>(convert<StepFileRow>(rows, [rank](const StepRecord& s) {
      return StepFileRow{rank,
                         s.step,
                         s.warmup,
                         s.start_s,
                         s.step_s,
                         s.compute_s,
                         s.exposed_s,
                         s.exposed_ag_forward_s,
                         s.exposed_ag_backward_s,
                         s.exposed_rs_s,
                         s.exposed_ar_s,
                         s.optimizer_s,
                         s.other_s,
                         s.tokens,
                         s.loss,
                         s.grad_norm};
    }));
  });
}

void TraceFile::append(int rank, std::span<const Event> rows) {
  impl_->guarded([&] {
    impl_->events.append<EventFileRow>(convert<EventFileRow>(rows, [rank](const Event& e) {
      const CollectiveFacts& f = e.facts;
      const bool about = e.is_collective;
      return EventFileRow{rank,
                          e.step,
                          e.micro,
                          e.subject.layer,
                          e.subject.bucket,
                          Text<10>(name_of(e.phase)),
                          Text<14>(name_of(e.kind)),
                          Text<8>(name_of(e.stream)),
                          Text<6>(name_of(f.axis)),
                          Text<12>(about ? name_of(f.algorithm) : "none"),
                          Text<6>(about ? name_of(f.dtype) : "none"),
                          about ? f.group_size : 0,
                          about ? f.size.count() : 0,
                          about ? bytes_of(f.dtype, f.size).count() : 0,
                          about ? f.sent_bytes : 0,
                          e.issue_s,
                          e.start_s,
                          e.end_s,
                          e.wait_s};
    }));
  });
}

void TraceFile::append(std::span<const MemoryRow> rows) {
  impl_->guarded([&] {
    impl_->memory.append<MemoryFileRow>(convert<MemoryFileRow>(rows, [](const MemoryRow& m) {
      return MemoryFileRow{m.rank, m.step, m.at_s, Text<20>(m.category), m.bytes};
    }));
  });
}

void TraceFile::append(std::span<const MemoryPeakRow> rows) {
  impl_->guarded([&] {
    impl_->memory_peak.append<MemoryPeakFileRow>(convert<MemoryPeakFileRow>(rows, [](const MemoryPeakRow& m) {
      return MemoryPeakFileRow{m.rank, Text<20>(m.category), m.peak_bytes};
    }));
  });
}

void TraceFile::append(std::span<const RankLedgerRow> rows) {
  impl_->guarded([&] {
    impl_->ledger.append<LedgerFileRow>(convert<LedgerFileRow>(rows, [](const RankLedgerRow& r) {
      return LedgerFileRow{r.rank,
                           Text<6>(name_of(r.row.axis)),
                           Text<32>(r.row.quantity),
                           r.row.expected,
                           r.row.measured,
                           r.row.padding,
                           Text<12>(r.row.unit)};
    }));
  });
}

void TraceFile::append(std::span<const TensorRow> rows) {
  impl_->guarded([&] {
    impl_->tensors.append<TensorFileRow>(convert<TensorFileRow>(rows, [](const TensorRow& t) {
      return TensorFileRow{t.index, Text<32>(t.name), t.elements, t.sum, t.sum_of_squares};
    }));
  });
}

void TraceFile::append(std::span<const CalibrationRow> rows) {
  impl_->guarded([&] {
    impl_->calibration.append<CalibrationFileRow>(
        convert<CalibrationFileRow>(rows, [](const CalibrationRow& c) {
          return CalibrationFileRow{Text<12>(c.kind), c.layer, Text<12>(c.direction), c.compute_alone_s,
                                    c.communication_alone_s};
        }));
  });
}

void TraceFile::append(int rank, std::span<const CollectiveRecord> rows) {
  SHARDBENCH_ASSERT(impl_->collectives);
  impl_->guarded([&] {
    impl_->collectives->append<CollectiveFileRow>(
        convert<CollectiveFileRow>(rows, [rank](const CollectiveRecord& c) {
          const bool reduces = c.collective != Collective::all_gather;
          return CollectiveFileRow{rank,
                                   c.line,
                                   Text<14>(name_of(c.collective)),
                                   Text<12>(name_of(c.algorithm)),
                                   Text<6>(name_of(c.dtype)),
                                   Text<8>(reduces ? name_of(c.reduction) : "none"),
                                   c.size.count(),
                                   c.count.count(),
                                   c.repetition,
                                   c.warmup,
                                   c.start_s,
                                   c.end_s,
                                   c.sent_bytes,
                                   c.wrong,
                                   c.window,
                                   Text<10>(name_of(c.stop))};
        }));
  });
}

void TraceFile::flush() {
  impl_->guarded([&] { impl_->flush(); });
  impl_->check_that_it_is_there();
}

void TraceFile::finish(RunStatus status) {
  set_status(status);
  flush();
  impl_->guarded([&] { impl_->sync(); });
}

void check_output(const std::string& path, ExistingFile existing) {
  const bool existed = access(path.c_str(), F_OK) == 0;
  open_path(path, existing);
  if (!existed) unlink(path.c_str());
}

bool close_abandoned(const std::string& path, RunStatus status) {
  prepare_library();
  if (access(path.c_str(), F_OK) != 0) return true;
  const hid_t opened = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  if (opened < 0) return false;
  const Id file(opened, H5Fclose, "H5Fopen");
  if (H5Aexists(opened, "status") <= 0) return true;
  const Id attribute(H5Aopen(opened, "status", H5P_DEFAULT), H5Aclose, "H5Aopen");
  const Id type = text_type(H5T_VARIABLE);
  char* present = nullptr;
  check(H5Aread(attribute.get(), type.get(), &present), "H5Aread");
  const bool is_running = present != nullptr && present == name_of(RunStatus::running);
  check(H5free_memory(present), "H5free_memory");
  if (!is_running) return true;
  // Its writer may have died between the sums and the status that they vouch for.
  if (H5Aexists(opened, "checksums") > 0) check(H5Adelete(opened, "checksums"), "H5Adelete");
  const std::string text(name_of(status));
  const char* const value = text.c_str();
  check(H5Awrite(attribute.get(), type.get(), static_cast<const void*>(&value)), "H5Awrite");
  check(H5Fflush(opened, H5F_SCOPE_GLOBAL), "H5Fflush");
  return true;
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  check(H5get_libversion(&major, &minor, &release), "H5get_libversion");
#ifdef H5_HAVE_PARALLEL
  constexpr const char* flavour = "parallel";
#else
  constexpr const char* flavour = "serial";
#endif
  return fmt::format("{}.{}.{} (headers {}.{}.{}, {})", major, minor, release, H5_VERS_MAJOR, H5_VERS_MINOR,
                     H5_VERS_RELEASE, flavour);
}

}  // namespace shardbench
