-- == Grid of periods: stepped bucket and fixed window ==========================================================
--
--   index   0        1             2             3
--           ┼────────┼─────────────┼─────────────┼──► t       one period each; the first ends at the offset
--           0     offset

-- The index of the period that contains an instant. What lies before the offset is index 0.
local function grid_index(rule, at)
  return math.floor((at + (rule.period - rule.offset)) / rule.period)
end

-- The first instant of a period.
local function grid_start(rule, index)
  return instant(at_least_zero(index * rule.period + rule.offset - rule.period))
end
