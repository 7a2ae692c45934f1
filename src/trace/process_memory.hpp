// What the operating system says about this process's memory.
#pragma once

#include "src/units.hpp"

namespace shardbench {

struct ProcessMemory {
  Bytes rss;  ///< resident set; counts shared pages in full
  Bytes hwm;  ///< its high-water mark
  Bytes pss;  ///< shared pages divided among their users; 0 where the kernel does not tell
};

/// Takes a few milliseconds (the kernel walks the page tables): never inside a timed step.
ProcessMemory read_process_memory();

/// Bytes that this host's processes may still allocate: what the kernel calls available, or less where a
/// control group limits this process; 0 where the kernel does not tell.
Bytes available_memory();

}  // namespace shardbench
