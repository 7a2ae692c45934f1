#include "src/backends.hpp"

namespace shardbench {

bool has_nccl() { return false; }

std::unique_ptr<Backend> make_backend(const Options& options, World& world, Memory& memory) {
  return make_host_backend(options, world, memory, Purpose::run);
}

}  // namespace shardbench
