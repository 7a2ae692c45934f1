// The machine of a simulation, as a shared library that smpirun loads: hosts and links after the JSON file
// that `shardbench simulate` writes (jobs/platforms/*.toml, and the number of ranks).
//
//   node k: GPUs node<k>-gpu<i>, joined by a crossbar        each GPU: a link out, a link in
//           one NIC a GPU                                    each NIC: a link out, a link in
//   fat-tree: nodes - leaf switches - spine switches         a full-duplex link carries all NICs of a node
//   flat:     every node at one ideal switch
#include <simgrid/s4u.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace s4u = simgrid::s4u;
using simgrid::kernel::routing::NetPoint;

constexpr const char* file_variable = "SHARDBENCH_PLATFORM";
// Compute is imitated by sleeping; no rank asks how fast its host is. (smpi/host-speed says the same.)
constexpr double host_speed = 1e9;

struct Link {
  double bandwidth;  ///< bytes/s
  double latency_s;
};

struct Machine {
  unsigned nodes;
  unsigned gpus;  ///< of a node
  Link gpu_link;
  Link nic;
  bool is_flat;
  unsigned leaf_nodes;
  unsigned oversubscription;
  double link_latency_s;

  [[nodiscard]] Link trunk() const { return {gpus * nic.bandwidth, link_latency_s}; }
};

struct Description {
  std::string text;
  Machine machine;
};

unsigned ceil_div(unsigned number, unsigned divisor) { return (number + divisor - 1) / divisor; }

Machine read_machine(const nlohmann::json& json) {
  const nlohmann::json& node = json.at("node");
  const nlohmann::json& network = json.at("network");
  const auto gpus = node.at("gpus").get<unsigned>();
  const auto ranks = json.at("ranks").get<unsigned>();
  const std::string topology = network.at("topology");
  if (topology != "fat-tree" && topology != "flat")
    throw std::invalid_argument("network.topology is \"" + topology +
                                "\", which is neither fat-tree nor flat");
  if (gpus == 0 || ranks == 0) throw std::invalid_argument("node.gpus and ranks must be at least 1");
  Machine machine{.nodes = ceil_div(ranks, gpus),
                  .gpus = gpus,
                  .gpu_link = {node.at("gpu_link_bandwidth"), node.at("gpu_link_latency_s")},
                  .nic = {node.at("nic_bandwidth"), node.at("nic_latency_s")},
                  .is_flat = topology == "flat",
                  .leaf_nodes = network.at("leaf_nodes"),
                  .oversubscription = network.at("oversubscription"),
                  .link_latency_s = network.at("link_latency_s")};
  if (machine.oversubscription == 0 || machine.leaf_nodes < machine.oversubscription ||
      machine.leaf_nodes % machine.oversubscription != 0)
    throw std::invalid_argument("network.leaf_nodes is not a multiple of network.oversubscription");
  return machine;
}

Description read_description() {
  const char* path = std::getenv(file_variable);
  if (path == nullptr) throw std::invalid_argument("it is not set");
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) throw std::invalid_argument(std::string(path) + " cannot be read");
  const Machine machine = read_machine(nlohmann::json::parse(text));
  return {std::move(text), machine};
}

s4u::Link* add_link(s4u::NetZone* zone, const std::string& name, const Link& link) {
  return zone->create_link(name, link.bandwidth)->set_latency(link.latency_s)->seal();
}

void add_route(s4u::NetZone* zone, NetPoint* from, NetPoint* to, const std::vector<const s4u::Link*>& links) {
  zone->add_route(from, to, nullptr, nullptr, {links.begin(), links.end()}, false);
}

/// A node with its GPUs and NICs; a zone of `parent`, or the whole platform where that is null. Returns what
/// the network knows of it: the zone, and the router at which traffic enters and leaves.
std::pair<NetPoint*, NetPoint*> make_node(const s4u::NetZone* parent, const Machine& machine,
                                          unsigned long index) {
  const std::string name = "node" + std::to_string(index);
  s4u::NetZone* zone = s4u::create_full_zone(name);
  if (parent != nullptr) zone->set_parent(parent);
  NetPoint* router = zone->create_router(name + "-router");
  struct Gpu {
    NetPoint* host;
    s4u::Link* out;
    s4u::Link* in;
  };
  std::vector<Gpu> gpus;
  for (unsigned i = 0; i < machine.gpus; ++i) {
    const std::string host = name + "-gpu" + std::to_string(i);
    gpus.push_back({zone->create_host(host, host_speed)->seal()->get_netpoint(),
                    add_link(zone, host + "-out", machine.gpu_link),
                    add_link(zone, host + "-in", machine.gpu_link)});
    add_route(zone, gpus[i].host, router, {add_link(zone, host + "-nic-out", machine.nic)});
    add_route(zone, router, gpus[i].host, {add_link(zone, host + "-nic-in", machine.nic)});
  }
  for (const Gpu& from : gpus)
    for (const Gpu& to : gpus)
      if (from.host != to.host) add_route(zone, from.host, to.host, {from.out, to.in});
  zone->seal();
  return {zone->get_netpoint(), router};
}

/// All nodes at one ideal switch. A trunk is as wide as its node's NICs, so that it only adds latency.
void make_star(const Machine& machine) {
  s4u::NetZone* star = s4u::create_star_zone("network");
  for (unsigned i = 0; i < machine.nodes; ++i) {
    const auto [node, router] = make_node(star, machine, i);
    const std::string name = "node" + std::to_string(i);
    const s4u::Link* out = add_link(star, name + "-trunk-out", machine.trunk());
    const s4u::Link* in = add_link(star, name + "-trunk-in", machine.trunk());
    star->add_route(node, nullptr, router, nullptr, {s4u::LinkInRoute(out)}, false);
    star->add_route(nullptr, node, nullptr, router, {s4u::LinkInRoute(in)}, false);
  }
  star->seal();
}

/// Whole leaves: the last one may have nodes that no rank uses.
void make_fat_tree(const Machine& machine) {
  const unsigned leaves = ceil_div(machine.nodes, machine.leaf_nodes);
  const unsigned spines = machine.leaf_nodes / machine.oversubscription;
  const s4u::FatTreeParams shape(2, {machine.leaf_nodes, leaves}, {1, spines}, {1, 1});
  const auto node = [&](s4u::NetZone* zone, const std::vector<unsigned long>& /*coordinates*/,
                        unsigned long index) { return make_node(zone, machine, index); };
  s4u::create_fatTree_zone("network", nullptr, shape, s4u::ClusterCallbacks(node), machine.trunk().bandwidth,
                           machine.trunk().latency_s, s4u::Link::SharingPolicy::SPLITDUPLEX)
      ->seal();
}

void make_platform(const Machine& machine) {
  if (machine.nodes == 1)
    make_node(nullptr, machine, 0);
  else if (machine.is_flat || machine.nodes <= machine.leaf_nodes)  // a fat tree of one leaf is a star
    make_star(machine);
  else
    make_fat_tree(machine);
}

}  // namespace

/// Called by SimGrid when smpirun -platform names this library.
extern "C" void load_platform(const simgrid::s4u::Engine& engine);
void load_platform(const simgrid::s4u::Engine& engine) {
  try {
    const Description description = read_description();
    make_platform(description.machine);
    // Simulated ranks read from it what their world is made of.
    engine.get_netzone_root()->set_property("shardbench", description.text);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "platform: %s: %s; start simulations with shardbench simulate\n", file_variable,
                 error.what());
    std::exit(2);
  }
}
