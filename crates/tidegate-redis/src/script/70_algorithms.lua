-- == Algorithms by layout number ===============================================================================

local ALGORITHMS = {
  [0] = token_bucket, nginx_queue, stepped_bucket, fixed_window, fixed_window, sliding_log, sliding_window, permits,
}
local created = {}

-- The functions of the algorithm whose values have this layout.
local function algorithm(layout)
  local create = ALGORITHMS[layout]
  created[create] = created[create] or create()
  return created[create]
end

-- The layout number of a value; nil if no algorithm writes values with this first byte and length.
local function layout_of(value)
  local first, length = string.byte(value) or 0, #value
  local layout = math.floor(first / 32)
  local low = first - 32 * layout -- in layouts 0 and 3 part of an instant, elsewhere 0, or 1 with a high-water mark
  local fits
  if layout == 0 then
    fits = length == 12 or (length >= 21 and length % 27 == 21) or (length >= 35 and length % 27 == 8)
  elseif layout <= 2 then
    fits = low == 0 and length == 15
  elseif layout == 3 then
    fits = length == 12 or length == 14
  elseif layout == 4 then
    fits = low == 0 and length == 22
  elseif layout == 5 then
    fits = length % 7 == 1 and (low == 0 or low == 1 and length >= 8)
  elseif layout == 6 then
    fits = low == 0 and length >= 17 and length % 4 == 1 or (low == 1 and length >= 24 and length % 4 == 0)
  else
    fits = low == 0 and length % 27 == 8
  end
  return fits and layout or nil
end

-- Charges what another algorithm counted as used, as if it had been used now, as far as the rule can hold it.
local function carry_over(rule, used)
  local id, own = rule.id, rule.algorithm
  own.read(rule, nil)
  rule.id = string.rep('\0', 16) -- permits carried over have no holder; they expire after one lease
  own.force(rule, math.min(used, own.max_cost(rule), 4294967295))
  rule.id, rule.repaired = id, true
end
