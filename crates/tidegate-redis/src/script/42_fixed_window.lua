-- == Fixed window ==============================================================================================
--
-- Counts requests in one window at a time: aligned to the clock (layout 3), or opened by the first request (layout 4).

local function fixed_window()
  local ALIGNED, FROM_FIRST_HIT = 3, 4
  local HIGH = 2 ^ 48 -- the layout number and 5 bits of the instant share a byte

  -- Decodes a value: the layout, when the window opened, when it ends, and the count. An aligned window does not store when it
  -- opened.
  local function decode(value)
    local kind = math.floor(string.byte(value) / 32)
    if kind == ALIGNED then
      local high, low, count = struct.unpack(#value == 12 and '>BI6I5' or '>BI6I7', value)
      return kind, nil, high % 32 * HIGH + low, count
    end
    local opened, length, count = struct.unpack('>xI7I7I7', value)
    return kind, opened, opened + length, count
  end

  local function aligned(rule)
    local index = grid_index(rule, now)
    rule.kind, rule.opened, rule.ends = ALIGNED, grid_start(rule, index), grid_start(rule, index + 1)
  end

  -- A window from the first hit. If it opened after `now`, the clock has stepped back since.
  local function opened_at(rule, at)
    rule.kind, rule.opened = FROM_FIRST_HIT, math.min(at, now)
    rule.ends = instant(rule.opened + rule.period)
  end

  -- A stored window counts until its own end. Which window its count continues in depends on the rule.
  local function read(rule, value)
    local kind, opened, ends, count
    if value then
      kind, opened, ends, count = decode(value)
    end
    if rule.offset then
      aligned(rule)
    else
      opened_at(rule, opened or now)
    end
    if not value or now >= ends or now >= rule.ends then
      count = 0
    end
    if count == 0 and not rule.offset then
      opened_at(rule, now)
    end
    rule.count = count
    rule.repaired = count > 0 and (rule.kind ~= kind or rule.ends ~= ends)
  end

  local function decision(rule, outcome, wait, count)
    return outcome, at_least_zero(rule.limit - count), wait, count == 0 and 0 or at_least_zero(rule.ends - now)
  end

  local function peek(rule, cost)
    if cost > rule.limit then
      return decision(rule, NEVER, 0, rule.count)
    end
    if cost == 0 or rule.count + cost <= rule.limit then
      return decision(rule, ALLOWED, 0, rule.count + cost)
    end
    return decision(rule, RETRY_AFTER, at_least_zero(rule.ends - now), rule.count)
  end

  local function force(rule, cost)
    rule.count = math.min(rule.count + cost, END)
    return decision(rule, ALLOWED, 0, rule.count)
  end

  local function refund(rule, cost)
    local owes = rule.count > 0
    rule.count = at_least_zero(rule.count - cost)
    return owes
  end

  local function store(rule)
    if rule.count > 0 then
      if rule.kind == FROM_FIRST_HIT then
        return struct.pack('>BI7I7I7', 32 * rule.kind, rule.opened, rule.ends - rule.opened, rule.count), rule.ends
      end
      local low = rule.ends % HIGH
      local head = 32 * rule.kind + (rule.ends - low) / HIGH
      return struct.pack(rule.count < 2 ^ 40 and '>BI6I5' or '>BI6I7', head, low, rule.count), rule.ends
    end
  end

  local function max_cost(rule)
    return rule.limit
  end

  local function used(value)
    local _, _, ends, count = decode(value)
    return now < ends and count or 0
  end

  return { read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used }
end
