// The output file: when it may be created, what refusing it says, and that its rows survive.
#include "src/trace/trace_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "src/errors.hpp"
#include "src/trace/checksums.hpp"

namespace shardbench {
namespace {

namespace fs = std::filesystem;

class TraceFiles : public testing::Test {
 protected:
  TraceFiles() {
    std::string pattern = (fs::temp_directory_path() / "shardbench-trace-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = pattern;
  }
  ~TraceFiles() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static bool is_hdf5(const std::string& path) { return contents(path).starts_with("\x89HDF\r\n\x1a\n"); }

  /// What creating the file is refused with; empty when it is not.
  template <class Error>
  static std::string refusal(const std::string& path, ExistingFile existing = ExistingFile::refuse) {
    try {
      const TraceFile file(path, existing);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_;
};

testing::AssertionResult is_one_line_naming(const std::string& message, const std::string& part) {
  if (message.find('\n') != std::string::npos)
    return testing::AssertionFailure() << "more than a line: " << message;
  if (message.find(part) == std::string::npos)
    return testing::AssertionFailure() << '"' << message << "\" does not name " << part;
  return testing::AssertionSuccess();
}

TEST_F(TraceFiles, AreCreatedWhereThereWasNone) {
  { const TraceFile file(path("new.h5"), ExistingFile::refuse); }
  EXPECT_TRUE(is_hdf5(path("new.h5")));
}

TEST_F(TraceFiles, DoNotReplaceAnExistingFileUnasked) {
  write_text(path("old.h5"), "precious");
  const std::string message = refusal<UsageError>(path("old.h5"));
  EXPECT_TRUE(is_one_line_naming(message, path("old.h5")));
  EXPECT_TRUE(is_one_line_naming(message, "--overwrite"));
  EXPECT_EQ(contents(path("old.h5")), "precious");
}

TEST_F(TraceFiles, ReplaceAnExistingFileWhenAsked) {
  write_text(path("old.h5"), "precious");
  { const TraceFile file(path("old.h5"), ExistingFile::overwrite); }
  EXPECT_TRUE(is_hdf5(path("old.h5")));
  { const TraceFile file(path("fresh.h5"), ExistingFile::overwrite); }
  EXPECT_TRUE(is_hdf5(path("fresh.h5")));
}

TEST_F(TraceFiles, ThatCannotBeWrittenNamePathAndReason) {
  fs::create_directory(folder_ / "folder");
  write_text(path("regular"), "");
  // Paths, not permissions: root may write anywhere.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {path("folder"), "not a regular file"},
      {path("regular") + "/below.h5", "Not a directory"},
      {path("missing") + "/below.h5", "No such file or directory"},
      {"/dev/full", "not a regular file"},
      {"/dev/null", "not a regular file"},
      {path(std::string(300, 'x')), "File name too long"},
      {"", "No such file or directory"},
  };
  for (const auto& [name, reason] : cases)
    for (const ExistingFile existing : {ExistingFile::refuse, ExistingFile::overwrite}) {
      const std::string message = refusal<RunError>(name, existing);
      EXPECT_TRUE(is_one_line_naming(message, name)) << name;
      EXPECT_TRUE(is_one_line_naming(message, reason)) << name;
    }
  EXPECT_FALSE(fs::exists(folder_ / "missing"));
}

TEST_F(TraceFiles, OpenInAnotherWriterNameThePath) {
  const TraceFile first(path("taken.h5"), ExistingFile::refuse);
  EXPECT_TRUE(
      is_one_line_naming(refusal<RunError>(path("taken.h5"), ExistingFile::overwrite), path("taken.h5")));
}

TEST_F(TraceFiles, HoldWhatWasAppendedAfterAFlush) {
  const std::string name = path("flushed.h5");
  TraceFile file(name, ExistingFile::refuse);
  file.set("scenario", "a-scenario-name");
  const std::vector<TensorRow> tensors = {{0, "a-tensor-name", 6, 1.0, 2.0}};
  file.append(tensors);
  file.append(0, std::span<const StepRecord>());
  file.set_config(R"({"a-config-key": 1})");
  file.flush();
  const std::string bytes = contents(name);  // while the writer still has it open
  EXPECT_NE(bytes.find("a-scenario-name"), std::string::npos);
  EXPECT_NE(bytes.find("a-config-key"), std::string::npos);
  EXPECT_NE(bytes.find("running"), std::string::npos);
}

TEST_F(TraceFiles, TakeManyAppendsAndANewStatus) {
  const std::string name = path("many.h5");
  {
    TraceFile file(name, ExistingFile::refuse);
    const std::vector<StepRecord> steps(1000);
    const std::vector<Event> events(1000);
    for (int window = 0; window < 10; ++window) {  // beyond one chunk of 4096 rows
      file.append(window, steps);
      file.append(window, events);
      file.flush();
    }
    file.finish(RunStatus::complete);
    file.finish(RunStatus::complete);
  }
  EXPECT_NE(contents(name).find("complete"), std::string::npos);
}

TEST_F(TraceFiles, HaveChecksumsOnceTheyAreClosedInOrder) {
  for (const RunStatus status : {RunStatus::complete, RunStatus::failed, RunStatus::interrupted}) {
    const std::string name = path(std::string(name_of(status)) + ".h5");
    {
      TraceFile file(name, ExistingFile::refuse);
      file.set_config("{}");
      file.flush();
      EXPECT_EQ(contents(name).find("checksums"), std::string::npos);  // as a killed run leaves it
      file.finish(status);
    }
    EXPECT_NE(contents(name).find(R"("config": 2745614147)"), std::string::npos);  // zlib.crc32(b"{}")
  }
}

TEST(Checksums, AreZlibs) {
  Crc32 sum;
  EXPECT_EQ(sum.value(), 0U);
  sum.add("1234");
  sum.add("");
  sum.add("56789");
  EXPECT_EQ(sum.value(), 0xCBF43926U);  // the check value of CRC-32 (ITU-T V.42)
}

TEST(Checksums, DependOnWhatIsSetAndNotOnTheOrderOfSetting) {
  Crc32 rows;
  rows.add("rows");
  Checksums first;
  first.set_attribute("a", "1");
  first.set_attribute("b", "2");
  first.set_config("{}");
  first.set_table("steps", rows);
  Checksums second;
  second.set_table("steps", rows);
  second.set_config("another");
  second.set_config("{}");
  second.set_attribute("b", "another");
  second.set_attribute("b", "2");
  second.set_attribute("a", "1");
  EXPECT_EQ(first.json(), second.json());
  second.set_attribute("a", "12");
  EXPECT_NE(first.json(), second.json());
}

/// While it lives, no file can grow beyond `bytes`: the way a full disk shows itself to a writer.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limited = before_;
    limited.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limited);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(TraceFiles, ThatTheirWriterLeftRunningGetAStatus) {
  const std::string name = path("abandoned.h5");
  EXPECT_TRUE(close_abandoned(name, RunStatus::failed)) << "there is nothing to close";
  TraceFile(name, ExistingFile::refuse).flush();
  EXPECT_TRUE(close_abandoned(name, RunStatus::interrupted));
  EXPECT_NE(contents(name).find("interrupted"), std::string::npos);
  EXPECT_TRUE(close_abandoned(name, RunStatus::failed));
  EXPECT_EQ(contents(name).find("failed"), std::string::npos) << "a status that is final stays";
}

TEST_F(TraceFiles, ThatCannotBeWrittenAreNotTouchedByAskingFirst) {
  const std::string name = path("asked.h5");
  check_output(name, ExistingFile::refuse);
  EXPECT_FALSE(fs::exists(name));
  write_text(name, "results of last week");
  check_output(name, ExistingFile::overwrite);
  EXPECT_EQ(contents(name), "results of last week");
  EXPECT_THROW(check_output(name, ExistingFile::refuse), UsageError);
  EXPECT_THROW(check_output(folder_.string(), ExistingFile::overwrite), RunError);
}

TEST_F(TraceFiles, ThatAreTakenAwayAreMissed) {
  const std::string name = path("gone.h5");
  TraceFile file(name, ExistingFile::refuse);
  file.flush();
  fs::remove(name);
  EXPECT_THROW(file.flush(), RunError);
}

TEST_F(TraceFiles, OnAFullDiskNameThePath) {
  const std::string name = path("full.h5");
  std::string message;
  try {
    TraceFile file(name, ExistingFile::refuse);
    const FullDisk full(32 << 10);
    std::vector<Event> events(4096);
    for (std::size_t i = 0; i < events.size(); ++i) events[i].start_s = 1.0 / static_cast<double>(i + 1);
    for (int window = 0; window < 20; ++window) {
      file.append(0, events);
      file.flush();
    }
  } catch (const RunError& error) {
    message = error.what();
  }
  EXPECT_TRUE(is_one_line_naming(message, name));
}

TEST(Hdf5, TellsHeadersLibraryAndFlavour) {
  EXPECT_NE(hdf5_version().find("headers"), std::string::npos);
  EXPECT_NE(hdf5_version().find("serial"), std::string::npos);
}

}  // namespace
}  // namespace shardbench
