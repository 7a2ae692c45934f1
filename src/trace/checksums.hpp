// What makes damage to a finished file visible: CRC-32 sums of its tables, configuration and attributes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace shardbench {

/// The CRC-32 of zlib and PNG (polynomial 0xEDB88320, reflected), of bytes that come piece by piece.
class Crc32 {
 public:
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  [[nodiscard]] std::uint32_t value() const { return value_; }

 private:
  std::uint32_t value_ = 0;  // of nothing
};

/// The sums of one file, as its attribute `checksums` holds them (SCHEMA.md).
class Checksums {
 public:
  void set_attribute(const std::string& name, const std::string& canonical_value);
  void set_config(std::string_view json);
  void set_table(const std::string& name, const Crc32& rows);

  /// {"attributes": ..., "config": ..., "tables": {...}}
  [[nodiscard]] std::string json() const;

 private:
  std::map<std::string, std::string> attributes_;  // by name, in the order of bytes
  std::map<std::string, std::uint32_t> tables_;
  Crc32 config_;
};

}  // namespace shardbench
