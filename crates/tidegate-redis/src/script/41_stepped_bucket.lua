-- == Stepped bucket ============================================================================================
--
-- A bucket that refills by `step` tokens at the start of each period, instead of continuously. The state is how many tokens are
-- used in the current period.

local function stepped_bucket()
  local function read(rule, value)
    rule.index, rule.used = grid_index(rule, now), 0
    if value then
      local start, used = struct.unpack('>xI7I7', value)
      local written = grid_index(rule, start)
      rule.used = at_least_zero(used - at_least_zero(rule.index - written) * rule.step)
      rule.repaired = written > rule.index
    end
  end

  local function until_refilled(rule, amount)
    if amount == 0 then
      return 0
    end
    return at_least_zero(grid_start(rule, rule.index + math.ceil(amount / rule.step)) - now)
  end

  local function decision(rule, outcome, wait, used)
    return outcome, at_least_zero(rule.burst - used), wait, until_refilled(rule, used)
  end

  local function peek(rule, cost)
    local over = at_least_zero(rule.used + cost - rule.burst)
    if cost > rule.burst then
      return decision(rule, NEVER, 0, rule.used)
    end
    if over == 0 or cost == 0 then
      return decision(rule, ALLOWED, 0, rule.used + cost)
    end
    return decision(rule, RETRY_AFTER, until_refilled(rule, over), rule.used)
  end

  local function force(rule, cost)
    rule.used = math.min(rule.used + cost, END)
    return decision(rule, ALLOWED, 0, rule.used)
  end

  local function refund(rule, cost)
    local owes = rule.used > 0
    rule.used = at_least_zero(rule.used - cost)
    return owes
  end

  local function rollback(rule, cost, charge_ends)
    return refund(rule, math.min(cost, (grid_index(rule, charge_ends) - rule.index - 1) * rule.step + 1))
  end

  local function store(rule)
    if rule.used > 0 then
      local idle_at = grid_start(rule, rule.index + math.ceil(rule.used / rule.step))
      return struct.pack('>BI7I7', 64, grid_start(rule, rule.index), rule.used), idle_at
    end
  end

  local function max_cost(rule)
    return rule.burst
  end

  local function used(value)
    local _, count = struct.unpack('>xI7I7', value)
    return count
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used,
    rollback = rollback,
  }
end
