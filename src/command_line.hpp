// What every command line of the project does: numbers that can be read in one way only, and names and forms
// that are refused rather than guessed. Nothing here depends on the locale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardbench {

/// A whole number in decimal digits, with a minus sign where it is negative, and nothing else: no plus sign,
/// space, exponent, fraction or hexadecimal, and no leading zero, which some readers take for octal.
std::optional<std::int64_t> whole_number(std::string_view text);

/// A finite decimal number such as 12, 0.05 or 1e12, with a point whatever the locale; it starts with a digit
/// (or a minus sign and a digit), and with 0 only before the point.
std::optional<double> real_number(std::string_view text);

/// The text with control characters written as \xNN, so that a message stays one line.
std::string one_line(std::string_view text);

/// The nearest candidate: one that is a typing error away (a character too many, too few, wrong, or two
/// swapped); else the shortest that `name` begins; else the one with the fewest such errors. The first of
/// equals; empty without candidates.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);
/// Whether a single typing error, or none, lies between the two.
bool one_error_apart(const std::string& a, const std::string& b);

}  // namespace shardbench
