// The backends of this build. One of two files implements this: backends_host.cpp or backends_cuda.cpp.
#pragma once

#include "src/train/backend.hpp"

namespace shardbench {

/// Whether --backend nccl is among them.
bool has_nccl();

/// What --backend asks for. Collective. Throws AgreedError where some rank has no device for it.
std::unique_ptr<Backend> make_backend(const Options& options, World& world, Memory& memory);

}  // namespace shardbench
