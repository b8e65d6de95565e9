-- == Sliding window ============================================================================================
--
-- Divides the period into cells and counts requests per cell. The oldest cell lies only partly in the window; `oldest` says how
-- it counts: in full (strict), in proportion to the part that is left (interpolated), or not at all (plain).
--
--     oldest                          current
--   ┼────────┼────────┼────────┼────────┼──┼──► t
--        ├───────────── period ────────────┤
--                                         now

local function sliding_window()
  local STRICT, INTERPOLATED, PLAIN = 0, 1, 2
  local HEAD, STEPPED = 192, 193 -- the first byte of a value, without and with a high-water mark
  local MAX_COUNT = 4294967295 -- the count of a cell is capped here

  -- The number of the cell that contains an instant. Whole periods first, because at · cells may be inexact.
  local function cell(rule, at)
    local rest = at % rule.period
    return (at - rest) / rule.period * rule.cells + math.floor(rest * rule.cells / rule.period)
  end

  -- The first instant at least parts / cells microseconds after the start of a cell.
  local function cell_instant(rule, number, parts)
    local rest = number % rule.cells
    return (number - rest) / rule.cells * rule.period + math.ceil((rest * rule.period + parts) / rule.cells)
  end

  local function cell_start(rule, number)
    return cell_instant(rule, number, 0)
  end

  local function cell_count(rule, number)
    return number <= rule.newest and rule.newest - number <= rule.cells and rule.counts[number] or 0
  end

  -- How much of the oldest cell still counts, in parts of `period`.
  local function cell_left(rule, at)
    if rule.oldest == STRICT then
      return rule.period
    end
    if rule.oldest == PLAIN then
      return 0
    end
    return rule.period - at % rule.period * rule.cells % rule.period
  end

  -- Quotient and remainder of a · b ÷ m, exact for b ≤ m < 2^53 even if a · b is larger: by doubling and adding, bit by bit
  -- from the top.
  local function muldiv(a, b, m)
    local product = a * b
    if product <= END then
      return math.floor(product / m), product % m
    end
    local bit, quotient, rest = 1, 0, 0
    while bit * 2 <= a do
      bit = bit * 2
    end
    while bit >= 1 do
      quotient = quotient * 2
      if rest >= m - rest then
        quotient, rest = quotient + 1, rest - (m - rest)
      else
        rest = rest + rest
      end
      if a >= bit then
        a = a - bit
        if rest >= m - b then
          quotient, rest = quotient + 1, rest - (m - b)
        else
          rest = rest + b
        end
      end
      bit = bit / 2
    end
    return quotient, rest
  end

  -- The weighted count of the oldest cell, rounded up.
  local function weighted(rule, oldest, left)
    local whole, rest = muldiv(oldest, left, rule.period)
    return rest > 0 and whole + 1 or whole
  end

  -- Decodes a value: counts by cell number, the number of the newest cell, and that of the high-water mark.
  local function cells_of(value)
    local first, period, many, newest = struct.unpack('>BI7I2I7', value)
    local at, high = 18, nil
    if first == STEPPED then
      at, high = 25, (struct.unpack('>I7', value, 18))
    end
    local counts, length = {}, (#value + 1 - at) / 4
    local list = { struct.unpack('>' .. string.rep('I4', length), value, at) }
    for i = 1, length do
      counts[newest - length + i] = list[i]
    end
    return { period = period, cells = many, newest = newest, counts = counts, high = high }
  end

  -- The sum of all cells that count, at least in part, while `current` is the current cell. A value does not say how its
  -- oldest cell counts, so that is included.
  local function cells_sum(ring, current)
    local sum = 0
    for number = current - ring.cells, ring.newest do
      sum = sum + cell_count(ring, number)
    end
    return sum
  end

  -- How far ahead `tidegate-core` can store the high-water mark: a cell's number and the distance share 64 bits.
  local function furthest_ahead(rule)
    local numbers = 1
    while numbers <= cell(rule, END) do
      numbers = numbers * 2
    end
    return 2 ^ 64 / numbers - 1
  end

  -- Makes another cell the newest and moves all counts with it.
  local function move(ring, newest)
    local counts = {}
    for number, count in pairs(ring.counts) do
      counts[number + newest - ring.newest] = count
    end
    ring.newest, ring.counts = newest, counts
  end

  -- Moves the counts with the clock if it is past the high-water mark, or has taken a large backward step. Returns whether it
  -- did, and the current cell: after a small backward step this is the newest cell until the clock reaches it.
  local function follow_clock(ring, oldest)
    local current = cell(ring, now)
    local back_to = math.max(oldest == INTERPOLATED and current + 1 or current, ring.cells)
    local follows = true
    if ring.high and current >= ring.high then
      move(ring, ring.high)
      ring.high = nil
    elseif ring.newest - back_to >= ring.cells then
      ring.high = math.min(math.max(ring.high or 0, ring.newest), back_to + furthest_ahead(ring))
      move(ring, back_to)
    else
      follows = false
    end
    return follows, math.max(current, ring.newest)
  end

  local function read(rule, value)
    local current = cell(rule, now)
    rule.current, rule.newest, rule.counts, rule.at = current, current, {}, now
    if not value then
      return
    end
    local ring = cells_of(value)
    if ring.period ~= rule.period or ring.cells ~= rule.cells then -- the rule changed: what still counts is counted now
      local _, their_current = follow_clock(ring, rule.oldest)
      local sum = cells_sum(ring, their_current)
      local high = ring.high and cell(rule, cell_start(ring, ring.high)) or 0
      if sum > 0 and high > current then
        rule.high = math.min(high, current + furthest_ahead(rule))
      end
      rule.counts[current], rule.repaired = sum, true
      return
    end
    rule.repaired, rule.current = follow_clock(ring, rule.oldest)
    rule.newest, rule.counts, rule.high = ring.newest, ring.counts, ring.high
    if current < rule.current then
      rule.at = cell_start(rule, rule.current)
    end
  end

  -- The sum of the cells that count in full while `current` is the current cell, and the count of the oldest cell.
  local function usage(rule, current)
    local full = 0
    for number = current - rule.cells + 1, rule.newest do
      full = full + cell_count(rule, number)
    end
    return full, cell_count(rule, current - rule.cells)
  end

  -- The first instant from `at` on, within cell `current`, at which at most `bound` is used; nil if there is none.
  local function within_cell(rule, full, oldest, current, at, bound)
    local spare = bound - full
    if spare < 0 then
      return nil
    end
    if weighted(rule, oldest, cell_left(rule, at)) <= spare then
      return at
    end
    if rule.oldest ~= INTERPOLATED then
      return nil
    end
    -- What `left` must fall to. The spare is less than the count of the oldest cell, or it would have fitted.
    local left = muldiv(rule.period, spare, oldest)
    local found = cell_instant(rule, current, rule.period - left)
    return found < cell_start(rule, current + 1) and found or nil
  end

  -- How long until at most `bound` is used, if nothing is charged.
  local function until_at_most(rule, bound)
    local full, oldest = usage(rule, rule.current)
    local current, at, high, ring_cell = rule.current, rule.at, rule.high, rule.current
    if full <= bound and weighted(rule, oldest, cell_left(rule, at)) <= bound - full then
      return 0
    end
    while true do
      local found = within_cell(rule, full, oldest, current, at, bound)
      if found then
        return found - now
      end
      current = current + 1
      at = cell_start(rule, current)
      if current == high then -- the high-water mark: the counts move to it
        ring_cell = rule.newest
        full, oldest = usage(rule, ring_cell)
      else -- a cell that counted in full becomes the oldest
        ring_cell = ring_cell + 1
        oldest = cell_count(rule, ring_cell - rule.cells)
        full = full - oldest
      end
    end
  end

  -- The number of cells after which a cell no longer counts at all.
  local function cells_until_gone(rule)
    return rule.oldest == PLAIN and rule.cells or rule.cells + 1
  end

  -- A decision that charges nothing.
  local function unchanged(rule, outcome, wait)
    local full, oldest = usage(rule, rule.current)
    local remaining = at_least_zero(rule.limit - full - weighted(rule, oldest, cell_left(rule, rule.at)))
    return outcome, remaining, wait, until_at_most(rule, 0)
  end

  local function peek(rule, cost)
    if cost == 0 then
      return unchanged(rule, ALLOWED, 0)
    end
    local full, oldest = usage(rule, rule.current)
    local remaining = rule.limit - full - weighted(rule, oldest, cell_left(rule, rule.at)) - cost
    if remaining >= 0 then
      local gone = rule.current + cells_until_gone(rule)
      if rule.high and gone >= rule.high then -- the cells up to the mark will not count
        gone = gone + rule.high - rule.current
      end
      return ALLOWED, remaining, 0, cell_start(rule, gone) - now
    end
    if cost > rule.limit then
      return unchanged(rule, NEVER, 0)
    end
    return unchanged(rule, RETRY_AFTER, until_at_most(rule, rule.limit - cost))
  end

  local function force(rule, cost)
    if cost > 0 then
      local count = cell_count(rule, rule.current)
      rule.newest = rule.current
      rule.counts[rule.current] = math.min(count + cost, MAX_COUNT)
    end
    return unchanged(rule, ALLOWED, 0)
  end

  -- From the oldest cells first, as in the sliding log. A key that is refunded in full is like an unused one.
  local function refund(rule, cost)
    if rule.counts[rule.current] then
      rule.counts[rule.current] = math.min(rule.counts[rule.current], MAX_COUNT)
    end
    local owes, left = false, false
    for number = rule.current + 1 - cells_until_gone(rule), rule.newest do
      local count = cell_count(rule, number)
      local back = math.min(count, cost)
      if back > 0 then
        rule.counts[number], cost, owes = count - back, cost - back, true
      end
      left = left or count > back
    end
    if owes and not left then
      rule.counts = {}
    end
    return owes
  end

  local function store(rule)
    local list, last = {}, nil
    for number = rule.newest - rule.cells, rule.newest do
      local count = cell_count(rule, number)
      if count > 0 then
        last = number
      end
      if last then
        list[#list + 1] = math.min(count, MAX_COUNT)
      end
    end
    if last then
      local head = struct.pack('>BI7I2I7', rule.high and STEPPED or HEAD, rule.period, rule.cells, rule.newest)
      local stepped = rule.high and struct.pack('>I7', rule.high) or ''
      local value = head .. stepped .. struct.pack('>' .. string.rep('I4', #list), unpack(list))
      local ahead = rule.high and rule.high - rule.newest or 0
      return value, instant(cell_start(rule, last + cells_until_gone(rule) + ahead))
    end
  end

  local function max_cost(rule)
    return rule.limit
  end

  local function used(value)
    local ring = cells_of(value)
    local _, current = follow_clock(ring, STRICT)
    return cells_sum(ring, current)
  end

  return { read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used }
end
