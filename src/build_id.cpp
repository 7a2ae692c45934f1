#include "src/build_id.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstring>
#include <span>

namespace shardbench {
namespace {

std::size_t aligned(std::size_t size) { return (size + 3) & ~std::size_t{3}; }

/// The description of the note named GNU of type NT_GNU_BUILD_ID among `notes`, in hexadecimal (elf(5)).
std::string find_build_id(std::span<const std::byte> notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes.data(), sizeof header);
    const std::size_t name = sizeof header;
    const std::size_t description = name + aligned(header.n_namesz);
    const std::size_t end = description + aligned(header.n_descsz);
    if (end > notes.size()) break;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(notes.data() + name, "GNU", 4) == 0) {
      std::string text;
      for (const std::byte byte : notes.subspan(description, header.n_descsz))
        text += fmt::format("{:02x}", static_cast<unsigned>(byte));
      return text;
    }
    notes = notes.subspan(end);
  }
  return {};
}

/// Called for each loaded object, the executable first.
int look_at(dl_phdr_info* info, std::size_t /*size*/, void* result) {
  auto& found = *static_cast<std::string*>(result);
  for (const ElfW(Phdr) & segment : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    if (segment.p_type != PT_NOTE) continue;
    const auto* begin = reinterpret_cast<const std::byte*>(info->dlpi_addr + segment.p_vaddr);
    found = find_build_id({begin, segment.p_memsz});
    if (!found.empty()) break;
  }
  return 1;  // no further object
}

}  // namespace

std::string build_id() {
  std::string found;
  dl_iterate_phdr(look_at, &found);
  return found.empty() ? "unknown" : found;
}

}  // namespace shardbench
