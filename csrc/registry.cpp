#include "registry.h"

#include <map>

namespace cutlass_ops {
namespace {

// A function's static: registrations run before main, in no given order.
std::map<std::string, Epilogue>& table() {
  static std::map<std::string, Epilogue> epilogues;
  return epilogues;
}

}  // namespace

Epilogue const* find_epilogue(std::string const& name) {
  auto const found = table().find(name);
  return found == table().end() ? nullptr : &found->second;
}

std::vector<std::string> epilogue_names() {
  std::vector<std::string> names;
  for (auto const& [name, epilogue] : table()) {
    names.push_back(name);
  }
  return names;
}

Registration::Registration(Epilogue const& epilogue) { table().emplace(epilogue.name, epilogue); }

}  // namespace cutlass_ops
