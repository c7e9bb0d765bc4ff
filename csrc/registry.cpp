#include "registry.h"

#include <map>
#include <set>

namespace cutlass_ops {
namespace {

// A function's static: registrations run while the library loads, in no given order.
std::map<std::string, Epilogue>& table() {
  static std::map<std::string, Epilogue> epilogues;
  return epilogues;
}

// Names that were registered twice: running either silently could be running the wrong one.
std::set<std::string>& ambiguous() {
  static std::set<std::string> names;
  return names;
}

}  // namespace

Epilogue const* find_epilogue(std::string const& name) {
  if (ambiguous().count(name) > 0) {
    return nullptr;
  }
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

Registration::Registration(Epilogue const& epilogue) {
  bool const first = table().emplace(epilogue.name, epilogue).second;
  if (!first) {
    ambiguous().insert(epilogue.name);
  }
}

}  // namespace cutlass_ops
