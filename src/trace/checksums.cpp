#include "src/trace/checksums.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>

namespace shardbench {

void Crc32::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // zlib counts in 32 bits.
    const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), std::numeric_limits<uInt>::max()));
    value_ = static_cast<std::uint32_t>(
        crc32(value_, reinterpret_cast<const Bytef*>(piece.data()), static_cast<uInt>(piece.size())));
    bytes = bytes.subspan(piece.size());
  }
}

void Checksums::set_attribute(const std::string& name, const std::string& canonical_value) {
  attributes_[name] = canonical_value;
}

void Checksums::set_config(std::string_view json) {
  config_ = Crc32();
  config_.add(json);
}

void Checksums::set_table(const std::string& name, const Crc32& rows) { tables_[name] = rows.value(); }

std::string Checksums::json() const {
  Crc32 attributes;
  for (const auto& [name, value] : attributes_) {
    // Neither contains a zero byte, so that no two sets of attributes read alike.
    attributes.add(name);
    attributes.add(std::string_view("\0", 1));
    attributes.add(value);
    attributes.add(std::string_view("\0", 1));
  }
  std::string tables;
  for (const auto& [name, sum] : tables_)
    tables += fmt::format("{}\"{}\": {}", tables.empty() ? "" : ", ", name, sum);
  return fmt::format(R"({{"attributes": {}, "config": {}, "tables": {{{}}}}})", attributes.value(),
                     config_.value(), tables);
}

}  // namespace shardbench
